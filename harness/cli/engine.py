"""The command `engine`, which downloads a release, and `regress --engine`, which watches one."""

import argparse

from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.cli.watch.options import ONLY_ENGINE
from paritybit.harness.cli.watch.run import run_watch
from paritybit.harness.errors import MalformedError

from paritybit.drive.engines import released
from paritybit.engines import fetch

OF_THE_LABORATORY = (
    "bug",
    "runner",
    "preset",
    "examples",
    "workers",
    "mps",
    "strict",
    "whole_engines",
)
"""Options of `regress` that only apply to the built-in engine."""


def run_engine(options: argparse.Namespace) -> int:
    """Download a release and its imports. A version without a name means sglang."""
    engine, version = released(options.version)
    found = engine.starter.prepare(f"{engine.package.name}=={version}")
    print(f"{found.name} is in {fetch.folder()}")
    return OK


def watch_engine(options: argparse.Namespace) -> int:
    """Watch the engine of `regress --engine`, and return the exit code.

    Raises MalformedError for an option that only applies to the built-in engine.
    """
    given = [name for name in OF_THE_LABORATORY if getattr(options, name)]
    if options.shape != "tiny":
        given.append("shape")
    if given:
        option = given[0].replace("_", "-")
        raise MalformedError(
            f"--{option} cannot be used with --engine, which watches the engine as a whole "
            "(see paritybit watch --help)"
        )
    rest = dict.fromkeys(ONLY_ENGINE) | {"settings": (), "keep_going": False}
    asked = {"checks": (), "every": 1, "known": None, "command": None}
    return run_watch(argparse.Namespace(**{**rest, **asked, **vars(options)}))
