"""Finds lines of the engine's source, such as `sglang/srt/...py:373`, among callers and errors."""

import functools
import traceback
from collections.abc import Collection
from pathlib import Path

from paritybit.connectors.hooking import callers, calling


@functools.cache
def shown(path: str) -> str:
    """Return a path relative to the parent of the engine's package."""
    parts = Path(path).parts
    return "/".join(parts[parts.index("sglang") :]) if "sglang" in parts else Path(path).name


def called_at(files: Collection[str]) -> tuple[str, ...]:
    """Return the innermost calling lines of the engine outside of some files."""

    def place(path: str) -> str | None:
        mine = "/sglang/srt/" in path and "/plugins/" not in path
        return shown(path) if mine else None

    return calling(place, files.__contains__)


def called_by(function: str) -> bool:
    """Return whether a function of this name is among the callers."""
    return any(frame.f_code.co_name == function for frame in callers())


def lines_of(error: BaseException) -> list[str]:
    """Return the lines in the traceback of an error. The last one raised it."""
    frames = traceback.walk_tb(error.__traceback__)
    return [f"{shown(frame.f_code.co_filename)}:{line}" for frame, line in frames]


def raised_in(error: BaseException, function: str) -> bool:
    """Return whether a function of this name is in the traceback of an error."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == function for frame, _ in frames)
