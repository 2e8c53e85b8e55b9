"""The captured sizes of trials, and how far a bucket of them can be filled."""

from paritybit.subjects.protocol import Replay

BUCKETS = (2, 4, 8)
"""In requests; those of a trial unless it names others."""

TOKEN_BUCKETS = (4, 12, 24)
"""In tokens; those of a trial unless it names others."""

SMALLEST = (1, 4)
"""In requests; those of the trials whose sizes begin at one row, where no row stands beside it."""

SMALLEST_TOKENS = (1, 5)
"""In tokens; those of such trials."""

WIDE_CONTEXT = 544
"""Tokens of the longest request of the trials with wide numbers: beyond every block of 512 keys."""

SKIPPED_SLOTS = 100_000
"""Slot numbers that these trials skip: none that is left fits 16 bits, nor bfloat16.

Times the elements that a slot has in all layers of a real model, each is beyond 2^31.
"""

FILLINGS = ("full", "one short", "padded after full")
"""The ways in which every bucket of every runner must have been filled at least once."""


def filling(runner: str, bucket: int, how: str) -> str:
    """Return the name of the event that a runner's bucket was replayed `how`, one of FILLINGS."""
    return f"{runner}: bucket {bucket} {how}"


def fillings(replay: Replay, last: Replay | None) -> dict[str, bool]:
    """Return which of FILLINGS a replay is, `last` being the one of the same runner before it.

    One short is all requests, or tokens, but one. Where a request brings several tokens, it is
    also all requests with too few tokens.
    """
    after_full = last is not None and not last.padded and last.bucket == replay.bucket
    return {
        "full": not replay.padded,
        "one short": replay.padded and replay.live_size >= replay.bucket - 1,
        "padded after full": replay.padded and after_full,
    }
