"""The names of this build, known without importing what takes long.

They are listed once and kept in the user's cache folder, with a digest of the sources that they
were listed from. Any change of a source lists them again.
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
"""How the names of a kind are shown in the list of all kinds."""

MORE = "'paritybit list bugs' prints each bug with a sentence; so do the other kinds."

Names = dict[str, dict[str, str]]
"""Kinds of names, in order; each name with a sentence about it."""


def names_file() -> Path:
    """Return the file that keeps the names of this build, for this interpreter."""
    build = hashlib.sha256(f"{SOURCES}\0{sys.version}".encode()).hexdigest()
    return cache_folder() / "names" / f"{build[:16]}.json"


@cache
def catalogue() -> Names:
    """Return every name of this build."""
    now = digest()
    path = names_file()
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == now:
            names: Names = kept["names"]
            return names
    names = importlib.import_module("paritybit.harness.checks.names").listed()
    with suppress(OSError, CannotRunError):  # Without it, the next command takes as long.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"digest": now, "names": names}))
    return names


def asked_for(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield what every name of a command line is of, and the name."""
    values = vars(options)
    bugs = (*(values.get("bug") or ()), *(values.get("bugs") or ()))
    for bug in bugs:
        name, on, runner = bug.partition("@")
        yield "bug", name
        if on:
            yield "runner", runner
    for kind in ("runner", "preset", "shape", "property", "device"):
        value = values.get(kind)
        for name in [value] if isinstance(value, str) else value or ():
            yield kind, name


def check_names(options: argparse.Namespace) -> None:
    """Raise MalformedError for what is no name, UnknownNameError for one that this build lacks."""
    check_engine(options)
    for kind, name in asked_for(options):
        known(kind, name, DEVICES if kind == "device" else catalogue()[PLURALS[kind]])


def check_engine(options: argparse.Namespace) -> None:
    """Raise MalformedError if the engine that is named is none, or a version has no such form."""
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
    """Print the names of this build: of one kind with a sentence each, or of all in short."""
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
    """Return names as indented lines, MOST_LINES at most."""
    return wrap(
        ", ".join(names),
        LINE_WIDTH,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        max_lines=MOST_LINES,
        placeholder=" ...",
    )
