"""Counterexamples of `explore` as JSON data: a bound and a list of actions, without code."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paritybit.explore.bound import Bound
from paritybit.explore.search import Machine, ViolationError, judging_errors
from paritybit.harness.errors import CannotRunError, MalformedError, cut
from paritybit.harness.records.case import complete, is_of_format
from paritybit.launch.record import write_data

FORMAT = "paritybit-explore-case"
VERSION = 1

MOST = 100
"""The most actions, and the largest size of any part of a bound, that a case may ask for."""


@dataclass(frozen=True)
class ExploreCase:
    """The shortest schedule that violates a law, and the law's message."""

    engine: str
    bound: Bound
    actions: tuple[str, ...]
    text: str


def is_case(data: Any) -> bool:
    """Return whether JSON data have the format of a case of `explore`."""
    return is_of_format(data, FORMAT)


def write(case: ExploreCase, path: Path) -> None:
    """Write a case. Raises CannotRunError if the file cannot be written."""
    write_data({"format": FORMAT, "version": VERSION, **asdict(case)}, path)


def case_of(data: Any, name: str) -> ExploreCase:
    """Return the case in JSON data. Raises MalformedError for malformed data."""
    case: ExploreCase = complete(ExploreCase, data, name, FORMAT, VERSION, called="case of explore")
    sizes = asdict(case.bound).values()
    if case.bound.keys > 2 or not all(0 < size <= MOST for size in (*sizes, len(case.actions))):
        raise MalformedError(
            f"{name}: sizes and the number of actions are between 1 and {MOST}, and keys are 1 or 2"
        )
    return case


def violation_of(machine: Machine, actions: tuple[str, ...]) -> str | None:
    """Perform actions and return the first violation, or None.

    Raises CannotRunError for an action that is not possible.
    """
    for action in actions:
        if action not in machine.actions():
            raise CannotRunError(f"the action {cut(action)!r} is not possible in this state")
        try:
            with judging_errors():
                machine.act(action)
                machine.check()
        except ViolationError as error:
            return str(error)
    return None
