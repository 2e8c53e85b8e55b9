"""Every name of this build."""

import argparse
import json

from harness.checks.expectations import detected_by, unaffected_reason
from harness.checks.table import STATEMENTS
from harness.cli.exit_codes import OK
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.runners import RUNNERS

OVERLAPPING = "hunted where steps overlap; on CUDA on two streams, on a CPU emulated"


def run_list(options: argparse.Namespace) -> int:
    """List every name of this build."""
    listed: dict[str, dict[str, str]] = {
        "bugs": {
            name: bug.mechanism + (f" ({OVERLAPPING})" if bug.overlap else "")
            for name, bug in BUGS.items()
        },
        "runners": {
            name: (runner.__doc__ or "").splitlines()[0] for name, runner in RUNNERS.items()
        },
        "bugs on runners": {
            f"{name}@{runner}": described(unaffected_reason(bug, runner), detected_by(bug, runner))
            for name, bug in BUGS.items()
            for runner in RUNNERS
        },
        "presets": {name: preset.source for name, preset in PRESETS.items()},
        "properties": dict(STATEMENTS),
    }
    if options.json:
        print(json.dumps(listed, indent=1))
        return OK
    for kind, entries in listed.items():
        print(kind)
        for name, sentence in entries.items():
            print(f"  {name:40} {sentence}")
    return OK


def described(unaffected: str | None, detected_by: str | None) -> str:
    """Say what a bug does to a runner."""
    return f"caught by {detected_by}" if unaffected is None else f"cannot harm it: {unaffected}"
