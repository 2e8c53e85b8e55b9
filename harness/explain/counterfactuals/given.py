"""What an op is given in a forward that is run again, who calls it, and where that first stands."""

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
    """Takes note of the line at which each tensor, and each record of some, first stands."""

    def __init__(self, *, returned: bool = False) -> None:
        self.returned = returned
        self.first: dict[int, tuple[Any, Sources]] = {}

    def __call__(self, frame: FrameType, line: int, returned: object) -> None:
        """Look for those that stood nowhere before."""
        for value in values_of({} if self.returned else frame.f_locals, returned):
            if isinstance(value, (Tensor, *RECORDS)) and id(value) not in self.first:
                self.first[id(value)] = value, lines_of(frame, line, "made")

    def lines_of(self, value: Any) -> Sources:
        """Return the lines at which a tensor first stands, none if it never does."""
        return self.first.get(id(value), (None, ()))[1]

    def of_number(self, number: Any) -> Sources | None:
        """Return the lines at which the last record that has a number first stands."""
        found = (
            lines for value, lines in reversed(self.first.values()) if has_number(value, number)
        )
        return next(found, None)


def given_to(
    recorded: RecordedForward, one: Replaced, seen: Seen | None = None
) -> tuple[tuple[Any, ...], Sources]:
    """Return what the op is given that an argument is replaced of first, and who calls it."""
    number, given = min(one.values), list[tuple[tuple[Any, ...], Sources]]()

    def look(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == one.op:
            given.append((arguments, calling(f"given to {one.op}")))
        return arguments

    recorded.again(captured=False, given=look, seen=seen)
    return given[number] if number < len(given) else ((), ())


def called_at(recorded: RecordedForward, one: Replaced) -> Sources:
    """Return the line at which the tensor that an op is given first stands, else who calls it."""
    place, first = next(iter(one.values[min(one.values)])), First()
    arguments, lines = given_to(recorded, one, first)
    if not arguments:
        return lines
    if isinstance(arguments[place], int):
        return first.of_number(arguments[place]) or lines
    return first.lines_of(arguments[place]) or lines


def rows_cut_at(recorded: RecordedForward, one: Replaced) -> Sources:
    """Return the line that gives an op fewer rows of its values than it holds, and its callers."""
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
    """Return the line that gives attention no mask, or makes key lists that have none.

    Of the latter the line in the runner's `own` file comes second.
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
    """Return where the storage of a tensor lies, -1 for anything else."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else -1
