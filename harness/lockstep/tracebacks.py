"""Errors of ours as text that a record may hold: whole, with no absolute path."""

import re
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE_PARTS = 3
"""Last parts that stay of the path of a source file outside this tree."""


def traceback_of(error: BaseException) -> str:
    """Return the whole traceback of an error, with no absolute path of a source file."""
    return without_absolute_paths("".join(traceback.format_exception(error)))


def without_absolute_paths(text: str) -> str:
    """Return the text of a traceback with paths below this tree, or the end of any other path."""

    def shown(found: re.Match[str]) -> str:
        path = Path(found[1])
        inside = path.is_relative_to(ROOT)
        return f'File "{path.relative_to(ROOT) if inside else Path(*path.parts[-OUTSIDE_PARTS:])}"'

    return re.sub(r'File "(/[^"]+)"', shown, text)


def headline(error: str) -> str:
    """Return the one line of a traceback that says what was raised, or an error's first line."""
    lines = error.strip().splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    rest = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in rest if not line.startswith(" ")), lines[-1])
