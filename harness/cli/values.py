"""The values of options, checked as they are read."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import typer
from paritybit.harness.errors import quote

ROOM = "x" * 200
"""A path as long as any that paritybit writes below a folder."""


def names(values: Iterable[str]) -> list[str]:
    """Return the different names in comma-separated lists. Raises BadParameter without a name."""
    found: list[str] = []
    for value in values or ():
        listed = [name.strip() for name in value.split(",") if name.strip()]
        if not listed:
            raise typer.BadParameter(f"{quote(value)} contains no name")
        found += listed
    return list(dict.fromkeys(found))


def path(text: str | Path) -> Path:
    """Return the path of a file or folder, which need not exist.

    Raises BadParameter for an empty text, a name that is too long, a loop of links, and a folder
    that this user may not enter.
    """
    if not str(text):
        raise typer.BadParameter("the path is empty")
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            (Path(text).absolute() / ROOM).stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(f"{quote(str(text))} is not a valid path: {why}") from error
    return Path(text)
