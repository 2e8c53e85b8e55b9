"""The legs of a plan. A leg is a set of settings with which an engine is served in one process."""

from collections.abc import Sequence
from dataclasses import dataclass

LACKING = 4
"""The exit code of a leg that the release does not support. Its last line has the reason."""


class LackingError(ValueError):
    """A release or a model does not support a setting."""


@dataclass(frozen=True)
class Leg:
    """One way to serve an engine: its name, its options, and its share of the time.

    `device` is the only device that supports the leg. None means any. `replays` is False if the leg
    may end without a replay, because its settings allow none or few.
    """

    name: str
    arguments: tuple[str, ...] = ()
    share: float = 1.0
    seconds: float = 0.0
    device: str | None = None
    replays: bool = True


def plan(device: str, legs: Sequence[Leg]) -> tuple[Leg, ...]:
    """Return the legs for a device."""
    return tuple(leg for leg in legs if leg.device in (None, device))
