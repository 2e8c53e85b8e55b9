"""Every name of this build."""

import argparse
import json

from harness.commands import OK
from harness.violation import PROPERTIES
from reference.config import PRESETS
from subjects.bugs import BUGS, unharmed_by
from subjects.runners import RUNNERS


def run_list(options: argparse.Namespace) -> int:
    """List every name of this build."""
    listed: dict[str, dict[str, str]] = {
        "bugs": {name: bug.mechanism for name, bug in BUGS.items()},
        "runners": {
            name: (runner.__doc__ or "").splitlines()[0] for name, runner in RUNNERS.items()
        },
        "bugs on runners": {
            f"{name}@{runner}": told(unharmed_by(bug, runner), bug.caught_by)
            for name, bug in BUGS.items()
            for runner in RUNNERS
        },
        "presets": {name: preset.source for name, preset in PRESETS.items()},
        "properties": PROPERTIES,
    }
    if options.json:
        print(json.dumps(listed, indent=1))
        return OK
    for kind, entries in listed.items():
        print(kind)
        for name, sentence in entries.items():
            print(f"  {name:40} {sentence}")
    return OK


def told(unharmed: str | None, caught_by: str | None) -> str:
    """Say what a bug does to a runner."""
    return f"caught by {caught_by}" if unharmed is None else f"cannot harm it: {unharmed}"
