"""The legs of a plan: settings that an engine is served with, one process each."""

from collections.abc import Sequence
from dataclasses import dataclass

LACKING = 4
"""Exit code of a leg that the release cannot be served with; the last line it prints says why."""


class LackingError(ValueError):
    """A setting that a release, or a model, does not have."""


@dataclass(frozen=True)
class Leg:
    """One way to serve an engine: its name, its options, and its part of the time."""

    name: str
    arguments: tuple[str, ...] = ()
    share: float = 1.0
    seconds: float = 0.0


def plan(device: str, seconds: float, legs: Sequence[Leg]) -> tuple[Leg, ...]:
    """Return the legs of a device, whose seconds add up to the given ones."""
    total = sum(leg.share for leg in legs)
    return tuple(
        Leg(leg.name, leg.arguments, leg.share, seconds * leg.share / total) for leg in legs
    )
