"""Reads the journals of the processes of a command while they are written.

See `paritybit.watch.journal`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paritybit.harness.errors import MalformedError
from paritybit.harness.records.files import opened
from paritybit.watch.journal import WRITABLE

PATTERN = "process-*.jsonl"

MOST_BYTES = 16 * 2**20
"""The most bytes that are read at once. A line is shorter."""

Entry = Mapping[str, Any]


class Journals:
    """The journals in a folder, with the number of bytes that were read of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[Path, int] = {}
        self.unreadable: dict[Path, str] = {}

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield the entries of complete lines since the last call, each with its process."""
        for path in sorted(self.folder.glob(PATTERN)):
            process = path.stem.removeprefix("process-")
            self.unreadable.pop(path, None)
            for line in self._lines(path):
                with suppress(ValueError, RecursionError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and isinstance(entry.get("kind"), str):
                        yield process, entry

    def incomplete(self) -> Iterator[str]:
        """Yield why a journal lacks lines. Call it when the processes have ended."""
        for path in sorted(self.folder.glob(PATTERN)):
            with suppress(OSError):
                if not path.stat().st_mode & WRITABLE:
                    yield f"{path.stem} could not write all lines of its journal"
        for path, why in self.unreadable.items():
            yield f"the journal of {path.stem} cannot be read: {why}"

    def _lines(self, path: Path) -> Iterator[bytes]:
        try:
            with opened(path) as file:
                while True:
                    file.seek(self.read.get(path, 0))
                    text = file.read(MOST_BYTES)
                    whole = text[: text.rfind(b"\n") + 1]
                    if not whole and len(text) < MOST_BYTES:
                        return
                    # Without an end in so many bytes, it is no line of a journal.
                    self.read[path] = self.read.get(path, 0) + len(whole or text)
                    yield from whole.splitlines()
        except OSError as error:
            self.unreadable[path] = error.strerror or type(error).__name__
        except MalformedError as error:
            self.unreadable[path] = str(error)
