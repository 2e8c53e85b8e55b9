"""What every test of the machine may ask for."""

from properties.support.fixtures import eight_gpus

__all__ = ["eight_gpus"]
