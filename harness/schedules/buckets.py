"""The captured sizes of trials."""

BUCKETS = (2, 4, 8)
"""Default captured sizes, in requests."""

TOKEN_BUCKETS = (4, 12, 24)
"""Default captured sizes, in tokens."""
