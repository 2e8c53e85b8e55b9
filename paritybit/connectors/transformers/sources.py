"""Finds lines of the engine's source, and interprets its errors."""

import traceback

from paritybit.connectors.failures import OUT_OF_BOUNDS

INSIDE = "transformers/generation/continuous_batching/"
"""The folder of continuous batching."""

BOOKKEEPING = ("cache.py", "cache_allocators/")
"""Files that keep account of blocks. An error in them means that the account is wrong."""

INDEX_ERRORS = ("out of bounds", "out of range")
"""What the message of an error contains, in lower case, if an index is out of bounds."""


def place(path: str) -> str | None:
    """Return a file of continuous batching as `transformers/...py`, or None for other files."""
    _, inside, rest = path.replace("\\", "/").rpartition(INSIDE)
    return f"{inside}{rest}" if inside else None


def raised_at(error: BaseException) -> str | None:
    """Return the innermost line of continuous batching in the traceback of an error, or None."""
    frames = traceback.walk_tb(error.__traceback__)
    found = [(place(frame.f_code.co_filename), line) for frame, line in frames]
    return next((f"{path}:{line}" for path, line in reversed(found) if path is not None), None)


def meaning(error: BaseException) -> str | None:
    """Return the meaning of an error that ended the loop, or None if it may not concern KV."""
    if any(words in str(error).lower() for words in INDEX_ERRORS):
        return OUT_OF_BOUNDS
    line = (raised_at(error) or "").removeprefix(INSIDE)
    if isinstance(error, (KeyError, IndexError, ValueError)) and line.startswith(BOOKKEEPING):
        return "the engine's own account of its blocks fails"
    return None
