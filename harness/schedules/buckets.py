"""The captured sizes of trials."""

BUCKETS = (2, 4, 8)
"""Default captured sizes, in requests."""

TOKEN_BUCKETS = (4, 12, 24)
"""Default captured sizes, in tokens."""

SMALLEST = (1, 4)
"""Captured sizes of the trials with the smallest bucket, in requests. One row is alone in it."""

SMALLEST_TOKENS = (1, 5)
"""Captured sizes of those trials, in tokens."""
