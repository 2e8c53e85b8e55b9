"""What is wrong with a row's list of keys, in words: its length and end, or a key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paritybit.reference.config import Kind

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class WrongList:
    """A wrong list of keys in words, and the first key that differs.

    `key` is its place, `value` the slot there and `right` the right slot. Either is None after the
    end of its list. `shifted` says that the keys are the right ones except for some at one end.
    """

    message: str
    key: int
    value: int | None
    right: int | None
    shifted: bool


def wrong_list(
    kind: Kind, found: Sequence[int], right: Sequence[int], column: Callable[[int], int | None]
) -> WrongList | None:
    """Return what is wrong with a row's slots, of which `right` are its own, or None.

    `column` returns the column of a slot in its request, or None.
    """
    if list(found) == list(right):
        return None
    key = next(
        (i for i, (one, other) in enumerate(zip(found, right, strict=False)) if one != other),
        min(len(found), len(right)),
    )
    value = found[key] if key < len(found) else None
    expected = right[key] if key < len(right) else None
    message = _at_an_end(kind, list(found), list(right), column)
    if message is not None:
        return WrongList(message, key, value, expected, shifted=True)
    message = f"has {_slot(value, column)} as key {key}; expected {_slot(expected, column)}"
    return WrongList(message, key, value, expected, shifted=False)


def _at_an_end(
    kind: Kind, found: list[int], right: list[int], column: Callable[[int], int | None]
) -> str | None:
    """Return by how many keys a list is too short or too long, if only at one end."""
    count, what = abs(len(found) - len(right)), "window" if kind is Kind.SWA else "request"
    number = NUMBERS[count] if count < len(NUMBERS) else str(count)
    if not found or not right:
        return None
    places = {"begins": (found[0], right[0]), "ends": (found[-1], right[-1])}
    if len(found) < len(right):
        ends = {"begins": found == right[count:], "ends": found == right[:-count]}
        size = "short"
    elif len(found) > len(right):
        ends = {"begins": found[count:] == right, "ends": found[:-count] == right}
        size = "too long"
    else:
        return None
    for verb, so in ends.items():
        if so:
            one, other = (_place(slot, column) for slot in places[verb])
            return f"is {number} {size}: it {verb} at {one}, but the {what} {verb} at {other}"
    return None


def _place(slot: int, column: Callable[[int], int | None]) -> str:
    at = column(slot)
    return f"slot {slot}" if at is None else f"column {at} (slot {slot})"


def _slot(slot: int | None, column: Callable[[int], int | None]) -> str:
    """Return the name of a slot, with its column in the request, or `no slot`."""
    if slot is None:
        return "no slot"
    at = column(slot)
    return f"slot {slot}" if at is None else f"slot {slot} (column {at})"
