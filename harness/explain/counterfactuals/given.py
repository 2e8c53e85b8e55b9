"""The arguments of an op in a repeated forward, who calls it, and where they first exist."""

from types import FrameType
from typing import Any

from paritybit.harness.explain.counterfactuals.replaced import Replaced
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.tracing import (
    RECORDS,
    Seen,
    Sources,
    calling,
    frames_calling,
    has_number,
    held_in,
    lines_of,
    values_of,
)
from paritybit.subjects.protocol import KeyLists
from torch import Tensor


class First:
    """Records the line at which each tensor, and each record with tensors, first exists."""

    def __init__(self, *, returned: bool = False) -> None:
        self.returned = returned
        self.first: dict[int, tuple[Any, Sources]] = {}

    def __call__(self, frame: FrameType, line: int, returned: object) -> None:
        """Look for new tensors and records."""
        for value in values_of({} if self.returned else frame.f_locals, returned):
            if isinstance(value, (Tensor, *RECORDS)) and id(value) not in self.first:
                self.first[id(value)] = value, lines_of(frame, line, "made")

    def lines_of(self, value: Any) -> Sources:
        """Return the lines at which a tensor first exists. Empty if it never does."""
        return self.first.get(id(value), (None, ()))[1]

    def of_number(self, number: Any) -> Sources | None:
        """Return the lines at which the last record with a number first exists."""
        found = (
            lines for value, lines in reversed(self.first.values()) if has_number(value, number)
        )
        return next(found, None)


def given_to(
    recorded: RecordedForward, one: Replaced, seen: Seen | None = None
) -> tuple[tuple[Any, ...], Sources]:
    """Return the arguments of the first op with a replaced argument, and who calls it."""
    number, given = min(one.values), list[tuple[tuple[Any, ...], Sources]]()

    def look(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == one.op:
            given.append((arguments, calling(f"given to {one.op}")))
        return arguments

    recorded.again(captured=False, given=look, seen=seen)
    return given[number] if number < len(given) else ((), ())


def called_at(recorded: RecordedForward, one: Replaced) -> Sources:
    """Return the line at which the op's tensor first exists, or else who calls the op."""
    place, first = next(iter(one.values[min(one.values)])), First()
    arguments, lines = given_to(recorded, one, first)
    if not arguments:
        return lines
    if isinstance(arguments[place], int):
        return first.of_number(arguments[place]) or lines
    return first.lines_of(arguments[place]) or lines


def rows_cut_at(recorded: RecordedForward, one: Replaced) -> Sources:
    """Return the line that gives an op fewer rows than it should have, and its callers."""
    number, rows, found = min(one.values), int(one.right), list[Sources]()
    places, met = tuple(one.values[number]), 0

    def look(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal met
        met += name == one.op
        if name == one.op and met == number + 1:
            given = {memory(arguments[place]) for place in places if len(arguments) > place}
            for frame in frames_calling():
                held = (value for local in frame.f_locals.values() for value in held_in(local))
                whole = (value for value in held if memory(value) in given)
                if any(value.dim() and len(value) == rows for value in whole):
                    found.append(lines_of(frame, frame.f_lineno, f"given to {one.op}"))
                    break
        return arguments

    recorded.again(captured=False, given=look)
    return found[0] if found else ()


def unmasked_at(recorded: RecordedForward, one: Replaced, own: str | None) -> Sources:
    """Return the line that gives attention no mask, or makes key lists without one.

    For the latter, the line in the runner's `own` file comes second.
    """
    first = First()
    arguments, calls = given_to(recorded, one, first)
    begin = arguments[2] if arguments else None
    lists = (found for found in first.first.values() if isinstance(found[0], KeyLists))
    made = (
        lines
        for value, lines in lists
        if value.mask is None and any(keys.begin is begin for keys in (value.full, value.swa))
    )
    lines = next(made, ())
    of_runner = [line for line in lines if line.file == own][:1]
    return tuple(dict.fromkeys((*lines[:1], *of_runner, *calls[:1], *lines, *calls)))


def memory(value: Any) -> int:
    """Return the address of a tensor's storage, or -1 for anything else."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else -1
