"""What tests of verdicts ask for by name."""

from properties.support.fixtures import captures_when_needed

__all__ = ["captures_when_needed"]
