"""The streams of a process: nothing that becomes of them ends a command early."""

import errno
import io
import os
import select
import sys
from typing import Any

STDOUT_IS_BROKEN = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO})
"""Errors of no file in particular: files that are written say which they are."""


class Stdout(io.FileIO):
    """A process's stdout. Where it takes no more, the rest goes nowhere, and `lost` says why.

    So a command whose reader went away, or whose log's disk is full, still keeps what it finds.
    """

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """Write, waiting for a reader that is slow, and return how many bytes were taken."""
        try:
            while (taken := super().write(data)) is None:  # Whoever opened it let it not block.
                select.select([], [self], [])
        except OSError as error:
            if error.errno not in STDOUT_IS_BROKEN:
                raise
            self.lost = error
            to_nowhere(self.fileno())
            return len(data)
        return taken


def to_nowhere(number: int) -> None:
    """Let what is written to a file descriptor go nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def taken_over() -> Stdout:
    """Put a Stdout in the place of this process's, and return it.

    Streams that whoever started this process had closed lead nowhere: a file opened later would
    have their number, and get what is written to them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest number that is free: this one.
    before: Any = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    raw = Stdout(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors="backslashreplace",
        line_buffering=before.line_buffering or before.write_through,
    )
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    return raw
