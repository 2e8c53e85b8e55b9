"""The names of this build, without slow imports, and the command `list`.

The names are listed once and cached in the user's cache folder with a digest of the sources. After
a change of any source they are listed again.
"""

import argparse
import hashlib
import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from textwrap import wrap

from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.cli.words.values import NEWEST
from paritybit.harness.errors import PLURALS, CannotRunError, known
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.sources import digest

from paritybit.places import SOURCES, cache_folder

DEVICES = ("auto", "cpu", "cuda")

MOST_LINES, LINE_WIDTH, INDENT = 4, 80, "  "
"""The layout of a kind's names in the list of all kinds."""

MORE = "'paritybit list bugs' prints each bug with a sentence; so do the other kinds."

Names = dict[str, dict[str, str]]
"""Names and their descriptions, by kind."""


def names_file() -> Path:
    """Return the cache file with the names of this build and interpreter."""
    build = hashlib.sha256(f"{SOURCES}\0{sys.version}".encode()).hexdigest()
    return cache_folder() / "names" / f"{build[:16]}.json"


@cache
def catalogue() -> Names:
    """Return all names of this build."""
    now = digest()
    path = names_file()
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == now:
            names: Names = kept["names"]
            return names
    names = importlib.import_module("paritybit.harness.checks.names").listed()
    with suppress(OSError, CannotRunError):  # Without the cache, the next command is slow too.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"digest": now, "names": names}))
    return names


def asked_for(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each name on a command line."""
    values = vars(options)
    bugs = (*(values.get("bug") or ()), *(values.get("bugs") or ()))
    for bug in bugs:
        name, on, runner = bug.partition("@")
        yield "bug", name
        if on:
            yield "runner", runner
    for kind in ("runner", "preset", "property", "device"):
        value = values.get(kind)
        for name in [value] if isinstance(value, str) else value or ():
            yield kind, name


def check_names(options: argparse.Namespace) -> None:
    """Raise MalformedError for malformed names, UnknownNameError for unknown ones."""
    check_engine(options)
    for kind, name in asked_for(options):
        known(kind, name, DEVICES if kind == "device" else catalogue()[PLURALS[kind]])


def check_engine(options: argparse.Namespace) -> None:
    """Raise MalformedError for an unknown engine or a malformed version."""
    values = vars(options)
    engine, version, versions = (values.get(name) for name in ("engine", "version", "releases"))
    if engine is None and version is None:
        return
    engines = importlib.import_module("paritybit.drive.engines")
    if version is not None:
        engines.released(version)
    elif versions is None:
        engines.driven(engine)
    for named in set(versions or ()) - {NEWEST}:
        engines.released(f"{engine}=={named}")


def run_list(options: argparse.Namespace) -> int:
    """Print the names of one kind with descriptions, or a summary of all kinds."""
    names = catalogue()
    if options.kind is not None:
        kind = options.kind.replace("-", " ")
        names = {kind: names[kind]}
    if options.json:
        print(json.dumps(names, indent=1))
    elif options.kind is not None:
        for name, sentence in names[kind].items():
            print(f"{name:40} {sentence}")
    else:
        for kind, entries in names.items():
            print(f"{len(entries)} {kind}")
            print(*in_short(entries), sep="\n")
        print(MORE)
    return OK


def in_short(names: Iterable[str]) -> list[str]:
    """Return names as at most MOST_LINES indented lines."""
    return wrap(
        ", ".join(names),
        LINE_WIDTH,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        max_lines=MOST_LINES,
        placeholder=" ...",
    )
