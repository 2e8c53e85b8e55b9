"""Reads the journals of the processes of a command while they are written.

A journal is a file of JSON lines, `process-PID.jsonl`. `paritybit.watch.journal` describes the
lines.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PATTERN = "process-*.jsonl"

MOST_BYTES = 64 * 2**20
"""The most bytes of a journal that are read. A process writes a few hundred bytes per second."""

Entry = Mapping[str, Any]


class Journals:
    """The journals in a folder, with the number of bytes that were read of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[Path, int] = {}

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield the entries that were written since the last call, each with its process.

        An incomplete line is left for the next call. A line that is not an entry is skipped: a
        process may have been killed while it wrote the line.
        """
        for path in sorted(self.folder.glob(PATTERN)):
            process = path.stem.removeprefix("process-")
            for line in self._lines(path):
                with suppress(ValueError, RecursionError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and isinstance(entry.get("kind"), str):
                        yield process, entry

    def _lines(self, path: Path) -> list[bytes]:
        """Return the complete lines of a journal that have not been read yet."""
        before = self.read.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(before)
                text = file.read(max(0, MOST_BYTES - before))
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.read[path] = before + len(whole)
        return whole.splitlines()
