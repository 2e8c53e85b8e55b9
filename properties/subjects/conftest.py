"""What every test of the subjects lives in."""

from properties.support.fixtures import inference

__all__ = ["inference"]
