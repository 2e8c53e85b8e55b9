"""Counterexamples of `explore` as JSON data: a bound and a list of actions, without code."""

from typing import Annotated, Literal

from msgspec import Meta

from paritybit.explore.bound import MOST, Bound
from paritybit.explore.search import Machine, ViolationError, judging_errors
from paritybit.harness.errors import CannotRunError, shorten
from paritybit.harness.records.codec import File


class ExploreCase(File, frozen=True, tag="paritybit-explore-case"):
    """The shortest schedule that violates a law, and the law's message."""

    engine: str
    bound: Bound
    actions: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST)]
    text: str
    version: Literal[1] = 1


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
