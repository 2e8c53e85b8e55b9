"""What every test of the worlds lives in."""

from properties.support.fixtures import inference

__all__ = ["inference"]
