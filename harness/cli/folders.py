"""Folders of runs, what of a command line a record may hold, and how many workers run."""

import os
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import MalformedError

OUT = Path("reports/out")
"""Where what a run writes goes, if nothing else is said."""

CORPUS = Path("properties/corpus")
"""Where the regression corpus lies."""


def default_workers(device: str) -> int:
    """Return one process on cuda, where processes take turns, or one per core."""
    return 1 if device == "cuda" else os.cpu_count() or 1


def shown(word: str, keep: int = 1) -> str:
    """Return a word of a command line as a record may hold it: with no absolute path.

    A path below the current folder becomes relative to it; of any other, the last
    `keep` parts stay.
    """
    if word.startswith("--") and "=" in word:
        option, _, value = word.partition("=")
        return f"{option}={shown(value, keep)}"
    path, here = Path(word), Path.cwd()
    if not path.is_absolute():
        return word
    return str(path.relative_to(here) if path.is_relative_to(here) else Path(*path.parts[-keep:]))


def new_folder(out: Path) -> Path:
    """Make a folder for this run under `out`. Raises ValueError where it cannot be written."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = next(
        folder
        for folder in (out / f"{stamp}{f'-{n}' if n else ''}Z" for n in range(1000))
        if not folder.exists()
    )
    try:
        (folder / "cases").mkdir(parents=True)
    except OSError as error:
        raise MalformedError(f"report folder {out} cannot be written: {error.strerror}") from error
    return folder


def swap_link(folder: Path) -> None:
    """Point the link `latest` beside `folder` at it, in one move."""
    link = folder.parent / "latest"
    fresh = folder.parent / f".latest-{folder.name}"
    fresh.symlink_to(folder.name)
    fresh.replace(link)
