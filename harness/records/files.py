"""Read files that others may have written, and write files whole or not at all.

`opened` is the only way in for a file that a user names.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from paritybit.harness.errors import CannotRunError, MalformedError

MOST_BYTES = 64 * 2**20
"""The size limit of a file. The largest committed record has 4 MiB."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises OSError or ValueError for a name that cannot be opened, and MalformedError for a device
    or a pipe.
    """

    def opener(name: str, flags: int) -> int:
        # A pipe without a process at its other end does not block.
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)

    with open(path, "rb", opener=opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise MalformedError(f"{path.name or path} is a device or a pipe, not a file")
        yield file


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file.

    Raises MalformedError for a device or a pipe, and for a file that is too large or unreadable.
    """
    name = path.name or str(path)
    try:
        with opened(path) as file:
            content = file.read(MOST_BYTES + 1)
    except MalformedError:
        raise
    except (OSError, ValueError) as error:  # ValueError: an invalid file name.
        why = error.strerror if isinstance(error, OSError) else error
        raise MalformedError(f"{name} cannot be read: {why}") from error
    if len(content) > MOST_BYTES:
        raise MalformedError(f"{name} is larger than {MOST_BYTES >> 20} MiB")
    return content


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, and create its folder. An old file stays until the new one is whole.

    A link is replaced, because whoever wrote a folder chose where it leads.
    Raises CannotRunError, which names the file, if it cannot be written.
    """
    try:
        target = path.parent.resolve() / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}") from error
