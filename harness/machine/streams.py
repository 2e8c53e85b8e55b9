"""Output streams that do not end a command when they fail."""

import io
import os
import select
import sys
from typing import Any


class Stdout(io.FileIO):
    """A process's stdout. After an error, further output is dropped and `lost` has the error.

    A command whose reader is gone or whose disk is full still saves its results.
    """

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """Write, and wait for a slow reader. Returns the number of bytes written."""
        try:
            while (taken := super().write(data)) is None:  # It was opened non-blocking.
                select.select([], [self], [])
        except OSError as error:
            self.lost = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)
        return taken


def taken_over() -> Stdout:
    """Replace this process's stdout by a Stdout, and return it.

    Streams that are closed are redirected to /dev/null. Otherwise a file opened later could get
    their number, and their output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest free number, which is this one.
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
