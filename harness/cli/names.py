"""The command `list`."""

import json

from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.exit_codes import OK
from paritybit.reference.config import PRESETS
from paritybit.reports.glossary import GLOSSARY
from paritybit.reports.sent import SENT
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS

from paritybit.watch.checks import CHECKS


def run_list(kind: str | None, *, as_json: bool) -> int:
    """Print the names of one kind with descriptions, or the number of names of each kind."""
    names: dict[str, dict[str, str]] = {
        "bugs": {name: bug.mechanism for name, bug in BUGS.items()},
        "runners": {
            name: (runner.__doc__ or "").partition("\n")[0] for name, runner in RUNNERS.items()
        },
        "models": {name: preset.source for name, preset in PRESETS.items()},
        "properties": {name: rule.statement for name, rule in PROPERTIES.items()},
        "findings": {name: check.invariant for name, check in CHECKS.items()},
        "words": dict(GLOSSARY),
    }
    if kind is not None:
        names = {kind: names[kind]}
    if as_json:
        print(json.dumps(names, indent=1))
    elif kind is not None:
        for name, sentence in names[kind].items():
            sent = SENT.get(name, ()) if kind == "findings" else ()
            reports = ", ".join(f"docs/reports/{report}.md" for report in sent)
            print(f"{name:32} {sentence}{f' (reports: {reports})' if reports else ''}")
    else:
        for each, entries in names.items():
            print(f"{len(entries)} {each}: paritybit list {each}")
    return OK
