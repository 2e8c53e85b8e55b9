"""The types of option values."""

import argparse
import os
import re
from contextlib import suppress
from pathlib import Path

from paritybit.harness.errors import quoted

NEWEST = "newest"
"""Stands for the newest release."""

MOST_NAME_BYTES = 255
"""The size limit of a file name in most file systems."""

ROOM = "x" * 200
"""A path as long as any that paritybit writes below a folder."""


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of names. Raises ArgumentTypeError without a name."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{quoted(text)} contains no name")
    return found


def number(text: str) -> int:
    """Return an integer with at most 18 digits. Raises ArgumentTypeError for other text."""
    if re.fullmatch("-?[0-9]{1,18}", text) is None:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a whole number with at most 18 digits"
        )
    return int(text)


def count(text: str, least: int = 1) -> int:
    """Return an integer from `least` to 999999999. Raises ArgumentTypeError for other text."""
    if re.fullmatch("[0-9]{1,9}", text) is None or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a whole number from {least} to 999999999"
        )
    return int(text)


def numbers(text: str) -> tuple[int, int | None]:
    """Return the first and the last number of FIRST-LAST, FIRST-, where the last is None, or FIRST.

    Raises ArgumentTypeError for other text.
    """
    first, dash, last = text.partition("-")
    begins, ends = count(first), count(last if dash and last else first)
    if ends < begins:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: the last row is before the first")
    return begins, None if dash and not last else ends


def count_or_none(text: str) -> int:
    """Return an integer of at least 0. Raises ArgumentTypeError for other text."""
    return count(text, least=0)


def file(text: str) -> Path:
    """Return the path of a file or folder, which need not exist.

    Raises ArgumentTypeError for an empty text, a name that is too long, a loop of links, and a
    folder that this user may not enter.
    """
    if not text:
        raise argparse.ArgumentTypeError("'' is not a valid path: the path is empty")
    try:
        longest = max(map(len, os.fsencode(text).split(b"/")))
        if longest > MOST_NAME_BYTES:
            raise ValueError(f"it has a name of {longest} bytes; the limit is {MOST_NAME_BYTES}")
        with suppress(FileNotFoundError, NotADirectoryError):
            (Path(text).absolute() / ROOM).stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a valid path: {why}") from error
    return Path(text)
