"""Read files that others may have written, and write files whole or not at all.

`read_bytes` is the only way in for a file that a user names. It follows no device, waits for no
silent pipe and holds no more than a fixed number of bytes.
"""

import os
import select
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path

from paritybit.harness.errors import CannotRunError, MalformedError

MOST_BYTES = 64 * 2**20
"""The size limit of a file. The largest committed record has 4 MiB."""

PIPE_SECONDS = 10.0
"""How long a pipe may have no process at its other end."""

CHUNK_BYTES = 2**20

READABLE = frozenset({stat.S_IFREG, stat.S_IFIFO})
"""File types, as in a file's mode. Every other one that can be opened is a device."""


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file, or of a pipe until its writer closes it.

    Raises MalformedError for anything else, for more than `most` bytes, for a pipe without data,
    and for a file that cannot be read.
    """
    name = path.name or str(path)
    try:
        with open(path, "rb", buffering=0, opener=_opened) as file:
            found = os.fstat(file.fileno())
            kind = stat.S_IFMT(found.st_mode)
            if kind == stat.S_IFIFO:
                _await_writer(file.fileno())
            content = _read(file, most + 1) if kind in READABLE and found.st_size <= most else b""
    except (OSError, ValueError) as error:  # ValueError: an invalid file name.
        why = error.strerror if isinstance(error, OSError) else error
        raise MalformedError(f"{name} cannot be read: {why}") from error
    if kind not in READABLE:
        raise MalformedError(f"{name} is a device, not a file")
    if max(len(content), found.st_size) > most:
        raise MalformedError(f"{name} is larger than {most >> 20} MiB")
    if kind == stat.S_IFIFO and not content:
        raise MalformedError(f"{name} is a pipe that nothing was written to")
    return content


def _opened(path: str, flags: int) -> int:
    """Open a file. A pipe without a process at its other end does not block."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _await_writer(descriptor: int) -> None:
    """Wait until a pipe has data or lost its writer, then let reads of it block."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    waiting.poll(PIPE_SECONDS * 1000)
    os.set_blocking(descriptor, True)


def _read(file: FileIO, most: int) -> bytes:
    """Return the content of a file, or its first `most` bytes."""
    content = bytearray()
    while len(content) < most and (part := file.read(min(most - len(content), CHUNK_BYTES))):
        content += part
    return bytes(content)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, and create its folder. An old file stays until the new one is whole.

    Raises CannotRunError, which names the file, if it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # A device or a pipe is not replaced.
            with open(path, "wb", opener=_opened) as file:
                os.set_blocking(file.fileno(), True)
                file.write(text.encode(errors="backslashreplace"))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path.resolve(), text)
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    """Write a file next to another one, then replace that one in one step."""
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
