"""The legs of a plan: settings that an engine is served with, one process each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

LACKING = 4
"""Exit code of a leg that the release cannot be served with; the last line it prints says why."""


class LackingError(ValueError):
    """A setting that a release, or a model, does not have."""


@dataclass(frozen=True)
class Leg:
    """One way to serve an engine: its name, its options, and its part of the time.

    `device` is the only device that can be served so; None means any.
    """

    name: str
    arguments: tuple[str, ...] = ()
    share: float = 1.0
    seconds: float = 0.0
    device: str | None = None


def plan(device: str, seconds: float, legs: Sequence[Leg]) -> tuple[Leg, ...]:
    """Return the legs of a device, whose seconds add up to the given ones."""
    mine = [leg for leg in legs if leg.device in (None, device)]
    total = sum(leg.share for leg in mine)
    return tuple(replace(leg, seconds=seconds * leg.share / total) for leg in mine)
