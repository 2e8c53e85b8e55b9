"""What every test of the reference lives in."""

from properties.support.fixtures import inference

__all__ = ["inference"]
