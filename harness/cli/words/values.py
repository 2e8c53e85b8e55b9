"""What the value of an option may be."""

import argparse
import re
from pathlib import Path

from paritybit.harness.errors import quoted

NEWEST, EVERY = "newest", "all"
"""What stands for the newest release, and for every release."""


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of names, at least one, or raise ArgumentTypeError."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{quoted(text)} contains no name")
    return found


def number(text: str) -> int:
    """Return a whole number of at most 18 digits, or raise ArgumentTypeError."""
    if re.fullmatch("-?[0-9]{1,18}", text) is None:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a whole number with at most 18 digits"
        )
    return int(text)


def count(text: str, least: int = 1) -> int:
    """Return a whole number of at least `least`, of 9 digits at most; else ArgumentTypeError."""
    if re.fullmatch("[0-9]{1,9}", text) is None or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a whole number from {least} to 999999999"
        )
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1, or raise ArgumentTypeError."""
    return tuple(count(part) for part in text.split(","))


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0, or raise ArgumentTypeError."""
    return count(text, least=0)


def file(text: str) -> Path:
    """Return the path of a file or folder, or raise ArgumentTypeError for no text at all.

    That is a script's variable that was not set; Path takes it for the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("'' is not a valid path: the path is empty")
    return Path(text)
