"""Folders of runs, and what of a command line a record may hold."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

from paritybit.harness.errors import CannotRunError, MalformedError

OUT = Path("paritybit-out")
"""Where what a run writes goes, if nothing else is said."""

LATEST = "latest"
"""The link to the folder of the last run, beside it."""

CORPUS = Path("properties/corpus")
"""Where the regression corpus lies."""


def shown(word: str, keep: int = 1) -> str:
    """Return a word of a command line as a record may hold it: with no absolute path.

    A path below the current folder becomes relative to it; of any other, a relative one that
    leaves it too, the last `keep` parts stay.
    """
    if word.startswith("--") and "=" in word:
        option, _, value = word.partition("=")
        return f"{option}={shown(value, keep)}"
    path, here = Path(word.removeprefix("file://")), Path.cwd()
    if path.is_relative_to(here):
        return str(path.relative_to(here))
    inside = [part for part in path.parts if part not in {"..", path.anchor}]
    leaves = path.is_absolute() or (".." in path.parts and len(inside) > keep)
    return str(Path(*inside[-keep:])) if leaves else word


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Make a folder for this run under `out`, as `new_folder` does.

    If an error ends the run before it has written anything, as with a journal or a cluster that
    cannot be used, the folder is removed, and so are those above it that had to be made.
    """
    above = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder = new_folder(out)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # A folder that holds something is kept.
            for empty in (folder / "cases", folder, *above):
                empty.rmdir()
        raise


def new_folder(out: Path) -> Path:
    """Make a folder for this run under `out`, whoever else makes one at the same time.

    Raises MalformedError where it cannot be made.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = next(filter(_made, (out / f"{stamp}{f'-{n}' if n else ''}Z" for n in count())))
        (folder / "cases").mkdir()
    except OSError as error:
        raise MalformedError(f"cannot write to report folder {out}: {error.strerror}") from error
    return folder


def _made(folder: Path) -> bool:
    """Make a folder; False for one that is there already, maybe since a moment ago."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def swap_link(folder: Path) -> None:
    """Point the link `latest` beside `folder` at it, in one move.

    A folder of that name, as a copy of the runs has, is kept under the next free one. Raises
    CannotRunError where the link cannot be made.
    """
    link = folder.parent / LATEST
    fresh = folder.parent / f".{LATEST}-{folder.name}"
    try:
        if link.is_dir() and not link.is_symlink():
            names = (link.with_name(f"{LATEST}-{turn}") for turn in count(1))
            link.rename(next(name for name in names if not name.exists()))
        fresh.symlink_to(folder.name)
        fresh.replace(link)
    except OSError as error:
        raise CannotRunError(f"cannot write {link}: {error.strerror}") from error


RUN_FOLDER = re.compile(r"(\d{8}T\d{6})(?:-(\d+))?Z")
"""What `new_folder` calls folders of runs: by the second, those of one second by number."""


def earlier_records(path: Path) -> list[Path]:
    """Return the records before one, of the same file name in earlier folders, the last first."""
    mine = order_of(path.parent)
    if mine is None:
        return []
    folders = [(order_of(folder), folder) for folder in path.parent.parent.iterdir()]
    earlier = [
        (order, folder / path.name)
        for order, folder in folders
        if order is not None and order < mine and (folder / path.name).is_file()
    ]
    return [record for _, record in sorted(earlier, reverse=True)]


def order_of(folder: Path) -> tuple[str, int] | None:
    """Return when the run of a folder began, and which of that second it is; None for others."""
    found = RUN_FOLDER.fullmatch(folder.name)
    return None if found is None else (found[1], int(found[2] or 0))
