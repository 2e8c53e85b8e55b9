"""Folders of runs, and command lines without absolute paths for records."""

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

from paritybit.harness.errors import (
    HIDDEN,
    SECRET,
    CannotRunError,
    MalformedError,
    without_secrets,
)

OUT = Path("paritybit-out")

LATEST = "latest"


def for_record(word: str) -> str:
    """Return a word of a command line for a record, without what is secret.

    A path is relative, or else its last part.
    """
    if (given := re.fullmatch(r"(-{0,2}[A-Za-z][\w-]*)=(.*)", word, re.DOTALL)) is not None:
        option, value = given.groups()
        return f"{option}={HIDDEN if SECRET.search(option) else for_record(value)}"
    path, here = Path(word.removeprefix("file://")), Path.cwd()
    if path.is_relative_to(here):
        return str(path.relative_to(here))
    inside = [part for part in path.parts if part not in {"..", path.anchor}]
    leaves = path.is_absolute() or (".." in path.parts and len(inside) > 1)
    return str(Path(*inside[-1:])) if leaves else without_secrets(word)


def command_of(words: Iterable[str]) -> str:
    """Return the command line of paritybit with some words, for a record."""
    kept, before = ["paritybit"], ""
    for word in words:
        hidden = before.startswith("-") and "=" not in before and SECRET.search(before)
        kept.append(HIDDEN if hidden else for_record(word))
        before = word
    return shlex.join(kept)


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Create a folder for this run under `out`, and remove it if an error leaves it empty."""
    above = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder = new_folder(out)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # A folder with content is kept.
            for empty in (folder / "cases", folder, *above):
                empty.rmdir()
        raise


def new_folder(out: Path) -> Path:
    """Create a folder for this run under `out`. Raises MalformedError if that fails."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for number in count():
            folder = out / f"{stamp}{f'-{number}' if number else ''}Z"
            with suppress(FileExistsError):
                folder.mkdir()
                break
        (folder / "cases").mkdir()
    except OSError as error:
        raise MalformedError(f"cannot write to report folder {out}: {error.strerror}") from error
    return folder


def swap_link(folder: Path) -> None:
    """Point the link `latest` next to `folder` at it, atomically.

    Raises CannotRunError if the link cannot be created, for example over a folder of this name.
    """
    link = folder.parent / LATEST
    fresh = folder.parent / f".{LATEST}-{folder.name}"
    try:
        fresh.symlink_to(folder.name)
        fresh.replace(link)
    except OSError as error:
        raise CannotRunError(f"cannot write {link}: {error.strerror}") from error
