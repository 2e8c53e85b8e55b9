"""Files that are written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from paritybit.harness.errors import CannotRunError


def write_whole(path: Path, text: str) -> None:
    """Write a file, and its folder; what was there stays until all of it is on the disk.

    Raises CannotRunError, which names the file, where it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # A device or a pipe: nothing takes its place.
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path.resolve(), text)
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    """Write a file beside another, and put it in its place in one move."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
