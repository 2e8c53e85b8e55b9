"""Lines of the engine's source, and what its errors mean."""

import sys
import traceback

INSIDE = "transformers/generation/continuous_batching/"
"""Where continuous batching lies."""

BOOKKEEPING = ("cache.py", "cache_allocators/")
"""Where the engine keeps account of blocks: an error there means that it has lost track."""

POOL = "cache_allocators/cache_pool.py"

OUT_OF_BOUNDS = ("out of bounds", "out of range", "illegal memory access", "device-side assert")
"""What an error says, in lower case, of memory that is accessed out of bounds."""


def place(path: str, line: int | None) -> str | None:
    """Return a line of continuous batching as `transformers/...py:12`; None for any other."""
    _, inside, rest = path.replace("\\", "/").rpartition(INSIDE)
    return f"{inside}{rest}:{line}" if inside else None


def called_at() -> str | None:
    """Return the innermost line of continuous batching that led here, outside of the pool."""
    frame = sys._getframe(1)
    while frame is not None:
        found = place(frame.f_code.co_filename, frame.f_lineno)
        if found is not None and POOL not in found:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def raised_at(error: BaseException) -> str | None:
    """Return the innermost line of continuous batching that an error came through."""
    frames = traceback.walk_tb(error.__traceback__)
    found = [place(frame.f_code.co_filename, line) for frame, line in frames]
    return next((line for line in reversed(found) if line is not None), None)


def meaning(error: BaseException) -> str | None:
    """Return what an error that ended the loop means, or None if it need not be about KV."""
    if any(words in str(error).lower() for words in OUT_OF_BOUNDS):
        return "a forward pass accesses memory out of bounds"
    line = (raised_at(error) or "").removeprefix(INSIDE)
    if isinstance(error, (KeyError, IndexError, ValueError)) and line.startswith(BOOKKEEPING):
        return "the engine's own account of its blocks fails"
    return None
