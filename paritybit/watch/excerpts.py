"""Reads the engine's source around the line that a finding names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paritybit.watch.stacks import lines_in

AROUND = 3
"""Number of lines before and after the named line."""

LONGEST = 160
"""The most characters of a line."""


def excerpt(*parts: Mapping[str, Any] | None) -> list[tuple[int, str]]:
    """Return the numbers and texts of the lines that the journal keeps with a finding.

    `parts` are its cause and its free. The lines are those around the first readable `source`. That
    is a file and a line, such as `engine/pool.py:12`, below a folder of the import path.
    """
    for one in parts:
        path, _, line = str((one or {}).get("source") or "").rpartition(":")
        if path and line.isdecimal() and not Path(path).is_absolute():
            lines = lines_in(path)
            number = int(line)
            if 0 < number <= len(lines):
                first = max(1, number - AROUND)
                shown = lines[first - 1 : number + AROUND]
                return [(at, text.rstrip()[:LONGEST]) for at, text in enumerate(shown, first)]
    return []
