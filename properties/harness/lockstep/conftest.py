"""What every test of the runs lives in."""

from properties.support.fixtures import captures_when_needed, inference

__all__ = ["captures_when_needed", "inference"]
