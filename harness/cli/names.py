"""The command `list`."""

import json
from collections.abc import Iterator

from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.exit_codes import OK
from paritybit.reference.config import PRESETS
from paritybit.reports.glossary import GLOSSARY
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS

from paritybit.compat import tomllib
from paritybit.drive import ENGINES
from paritybit.drive.adapters import adapter
from paritybit.engines.fetch import in_order
from paritybit.places import PAGES, SOURCES
from paritybit.watch.checks import CHECKS

WIDTH = 32
"""The width of names. A longer one has its description on the next line."""


def run_list(kind: str | None, *, as_json: bool) -> int:
    """Print the names of one kind with descriptions, or the number of names of each kind."""
    names: dict[str, dict[str, str]] = {
        "checks": {name: check.invariant for name, check in CHECKS.items()},
        "settings": dict(settings()),
        "findings": dict(findings()),
        "pages": dict(pages()),
        "words": dict(GLOSSARY),
        "bugs": {name: bug.mechanism for name, bug in BUGS.items()},
        "runners": {
            name: (runner.__doc__ or "").partition("\n")[0] for name, runner in RUNNERS.items()
        },
        "models": {name: preset.source for name, preset in PRESETS.items()},
        "properties": {name: rule.statement for name, rule in PROPERTIES.items()},
    }
    if kind is not None:
        names = {kind: names[kind]}
    if as_json:
        print(json.dumps(names, indent=1))
    elif kind is not None:
        for name, sentence in names[kind].items():
            apart = " " if len(name) <= WIDTH else f"\n{'':4}"
            print(f"{name:{WIDTH}}{apart}{sentence}")
    else:
        for each, entries in names.items():
            print(f"{len(entries)} {each}: paritybit list {each}")
    return OK


def settings() -> Iterator[tuple[str, str]]:
    """Yield each setting that engines are served with, and what it changes."""
    for engine in ENGINES:
        table = adapter(engine).table
        named = {one for groups in table.failing if len(groups) == 1 for one in groups[0]}
        for axis, values in table.axes.items():
            for value, own in values.items():
                changed = ", ".join(f"{name}={one}" for name, one in own.items()) or "the default"
                where = f", on {table.devices[value]}" if value in table.devices else ""
                how = ", only with --settings" if value in named else ""
                yield f"{engine}: {value}", f"{axis}: {changed}{where}{how}"


def findings() -> Iterator[tuple[str, str]]:
    """Yield what was found in each engine and its releases, oldest first, and where to read on."""
    text = (SOURCES / "reports" / "found.toml").read_text(encoding="utf-8")
    order = {name: number for number, name in enumerate(ENGINES)}
    found = tomllib.loads(text)["found"]
    found.sort(key=lambda one: (order.get(one["engine"].lower(), len(order)), key_of(one)))
    for one in found:
        report = f"{PAGES}/reports/{one['report']}.md" if "report" in one else "no public thread"
        yield f"{one['engine']} {one['releases']}: {one['finding']}", one.get("thread", report)


def key_of(one: dict[str, str]) -> object:
    """Return the sort key of the first release that has a finding."""
    return in_order(one["releases"].partition(",")[0].split()[0])


def pages() -> Iterator[tuple[str, str]]:
    """Yield the documents and the reports, with their paths and titles."""
    for file in (*sorted(PAGES.glob("*.md")), *sorted(PAGES.glob("reports/*.md"))):
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        yield str(file), title
