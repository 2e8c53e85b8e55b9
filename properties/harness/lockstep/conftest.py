"""What every test of the runs lives in."""

from properties.support.fixtures import inference

__all__ = ["inference"]
