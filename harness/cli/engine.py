"""The command `engine`, which downloads a release."""

import argparse

from paritybit.harness.cli.exit_codes import OK

from paritybit.drive.engines import released
from paritybit.engines import fetch


def run_engine(options: argparse.Namespace) -> int:
    """Download a release and its imports. A version without a name means sglang."""
    engine, version = released(options.version)
    found = engine.starter.prepare(f"{engine.package.name}=={version}")
    print(f"{found.name} is in {fetch.folder()}")
    return OK
