"""The captured sizes of trials, and how far a bucket of them can be filled."""

from paritybit.subjects.protocol import ReplayResult

BUCKETS = (2, 4, 8)
"""Default captured sizes, in requests."""

TOKEN_BUCKETS = (4, 12, 24)
"""Default captured sizes, in tokens."""

SMALLEST = (1, 4)
"""Captured sizes of the trials with the smallest bucket, in requests. One row is alone in it."""

SMALLEST_TOKENS = (1, 5)
"""Captured sizes of those trials, in tokens."""

FILLINGS = ("full", "one short", "padded after full")
"""The ways in which each bucket of each runner must be filled at least once."""


def filling(runner: str, bucket: int, how: str) -> str:
    """Return the name of the event that a runner replayed a bucket filled as `how` of FILLINGS."""
    return f"{runner}: bucket {bucket} {how}"


def fillings(replay: ReplayResult, last: ReplayResult | None) -> dict[str, bool]:
    """Return which of FILLINGS apply to a replay. `last` is the previous replay of the same runner.

    One short means all requests, or tokens, but one. If a request has several tokens, it also means
    all requests with too few tokens.
    """
    after_full = last is not None and not last.padded and last.bucket == replay.bucket
    return {
        "full": not replay.padded,
        "one short": replay.padded and replay.live_size >= replay.bucket - 1,
        "padded after full": replay.padded and after_full,
    }
