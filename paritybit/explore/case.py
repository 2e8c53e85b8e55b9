"""Counterexamples of `explore` as JSON data: a bound and a list of actions, without code."""

from dataclasses import asdict
from typing import Literal

from paritybit.explore.bound import Bound
from paritybit.explore.search import Machine, ViolationError, judging_errors
from paritybit.harness.errors import CannotRunError, shorten
from paritybit.harness.records.codec import File

MOST = 100
"""The most actions, and the largest size of any part of a bound, that a case may ask for."""


class ExploreCase(File, frozen=True, tag="paritybit-explore-case"):
    """The shortest schedule that violates a law, and the law's message."""

    engine: str
    bound: Bound
    actions: tuple[str, ...]
    text: str
    version: Literal[1] = 1

    def __post_init__(self) -> None:
        """Raise ValueError for a bound or a list of actions that is too large."""
        sizes = (*asdict(self.bound).values(), len(self.actions))
        if self.bound.keys > 2 or not all(0 < size <= MOST for size in sizes):
            raise ValueError(
                f"sizes and the number of actions are between 1 and {MOST}, and keys are 1 or 2"
            )


def violation_of(machine: Machine, actions: tuple[str, ...]) -> str | None:
    """Perform actions and return the first violation, or None.

    Raises CannotRunError for an action that is not possible.
    """
    for action in actions:
        if action not in machine.actions():
            raise CannotRunError(f"the action {shorten(action)!r} is not possible in this state")
        try:
            with judging_errors():
                machine.act(action)
                machine.check()
        except ViolationError as error:
            return str(error)
    return None
