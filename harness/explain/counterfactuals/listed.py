"""Key lists as arguments of attention ops: changes with which they would list other keys."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, zip_longest
from typing import Any

import torch
from paritybit.harness.explain.first_difference import key_places, keys_of
from paritybit.reference.ops import OpCall
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""A held value and the right value."""

Lists = Sequence[Sequence[int]]
"""The keys of each row of an attention op."""

MOST_PLACE = 6
MASK, MASK_PLACE = "mask", 7
MASK_START, MASK_START_PLACE = "mask_start", 8
"""Arguments of attention: a row's maximum key count, the mask, and where its rows begin."""

FURTHEST = 64
"""How far to search in both directions for the keys that a row should list."""


def spelled_lists(calls: Sequence[tuple[OpCall, Lists]]) -> Iterator[tuple[OpCall, bool, Pair]]:
    """Yield the argument corrections that make some attention ops list the right keys.

    Each comes with the first op that has it, and with whether the argument holds slots. Slots are
    corrected in place if that is right for all rows. Otherwise each row's begin and end move to
    where the right keys are. Nothing is yielded if neither is possible.
    """
    by_slots: dict[int, list[tuple[OpCall, Lists]]] = {}
    for call, right in calls:
        by_slots.setdefault(call.inputs[4].data_ptr(), []).append((call, right))
    for group in by_slots.values():
        pair = _in_place(group)
        if pair is not None:
            yield group[0][0], True, pair
            continue
        seen = set[int]()
        for call, right in group:
            for held, fixed in _moved(call, right):
                if held.data_ptr() not in seen:
                    seen.add(held.data_ptr())
                    yield call, False, (held.clone(), fixed)


def _in_place(group: Sequence[tuple[OpCall, Lists]]) -> Pair | None:
    """Return the slots that some ops list from, and the right slots at the same places."""
    found: dict[int, int] = {}
    for call, right in group:
        for row, keys in enumerate(right):
            for place, key in zip_longest(key_places(call, row), keys):
                if place is None or key is None or found.setdefault(place, key) != key:
                    return None
    first, last = min(found), max(found)
    held = group[0][0].inputs[4][first : last + 1].to(torch.int64).cpu().clone()
    fixed = held.clone()
    fixed[[place - first for place in found]] = torch.tensor(list(found.values()))
    return held, fixed


def _moved(call: OpCall, right: Lists) -> Iterator[Pair]:
    """Yield the begins and the ends of an op's rows, with the right ones, if they differ.

    Yields nothing if the keys of some row cannot be found.
    """
    bounds = [_bounds(call, row, keys) for row, keys in enumerate(right)]
    known = [found for found in bounds if found is not None]
    if len(known) < len(bounds):
        return
    for held, fixed in zip(call.inputs[2:4], zip(*known, strict=True), strict=True):
        if held.tolist() != list(fixed):
            yield held, torch.tensor(fixed, dtype=held.dtype)


def _bounds(call: OpCall, row: int, right: Sequence[int]) -> tuple[int, int] | None:
    """Return the begin and end of a row's right keys, as near as possible to the present ones."""
    _, _, begin, end, slots, _, _, mask, mask_start = (*call.inputs, None, None)[:9]
    first, last, listed = int(begin[row]), int(end[row]), slots.tolist()
    if keys_of(call, row) == list(right):
        return first, last
    nearest = range(max(first - FURTHEST, 0), min(first + FURTHEST, len(listed)) + 1)
    for at in sorted(nearest, key=lambda at: abs(at - first)):
        if mask is None or mask_start is None:
            if listed[at : at + len(right)] == list(right):
                return at, at + len(right)
            continue
        bits = int(mask_start[row]) + at - first
        shown = mask[max(bits, 0) : bits + last - at].tolist()
        if bits >= 0 and list(compress(listed[at:last], shown)) == list(right):
            return at, last
    return None


def mask_starts(call: OpCall, right: Lists) -> Pair | None:
    """Return each row's mask begin, and the right begin if that is the only correction needed.

    Returns None if no begin lists the right keys, or if rows with other begins or ends do.
    """
    *_, begin, end, slots, _, _, mask, held = (*call.inputs, None, None)[:9]
    if mask is None or held is None or any(_moved(call, right)):
        return None
    listed, shown, starts = slots.tolist(), mask.tolist(), held.tolist()
    for row, keys in enumerate(right):
        of_row, start = listed[int(begin[row]) : int(end[row])], starts[row]
        nearest = range(max(start - FURTHEST, 0), start + FURTHEST + 1)
        places = (
            at
            for at in sorted(nearest, key=lambda at: abs(at - start))
            if list(compress(of_row, shown[at : at + len(of_row)])) == list(keys)
        )
        found = next(places, None)
        if found is None:
            return None
        starts[row] = found
    return held.clone(), torch.tensor(starts).to(held)


def mask_for(call: OpCall, right: Lists) -> Pair | None:
    """Return a mask with which an attention op lists the right keys, and where its rows begin.

    Returns None if a row does not list all its right keys. Rows after those of `right` list all.
    """
    _, _, begin, end, slots = call.inputs[:5]
    bits, starts = list[bool](), list[int]()
    for row in range(len(begin)):
        listed = slots[int(begin[row]) : int(end[row])].tolist()
        wanted = list(right[row] if row < len(right) else listed)
        starts.append(len(bits))
        for slot in listed:
            bits.append(wanted[:1] == [slot])
            wanted = wanted[bits[-1] :]
        if wanted:
            return None
    return torch.tensor(bits, device=slots.device), torch.tensor(starts, device=slots.device)


def lists_of(call: OpCall) -> list[list[int]]:
    """Return the keys of each row of an attention op."""
    return [keys_of(call, row) for row in range(len(call.inputs[2]))]


def right_lists(call: OpCall, usual: OpCall, *, padded: bool) -> list[list[int]]:
    """Return the right keys of each row of an attention op. Live rows have those of `usual`.

    With `padded`, padded rows have only the reserved slot.
    """
    held, live = lists_of(call), len(usual.inputs[2])
    further = held[live:]
    if padded:
        further = [keys if set(keys) <= {0} else [0] for keys in further]
    return [*lists_of(usual)[: len(held)], *further]


def row_listed(call: OpCall, row: int, right: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return a row's listed keys, masked ones included, and the same keys corrected."""
    first, places = int(call.inputs[2][row]), key_places(call, row)
    if len(places) != len(right):
        return torch.tensor(keys_of(call, row)), torch.tensor(right)
    held = call.inputs[4][first : int(call.inputs[3][row])].to(torch.int64).cpu().clone()
    fixed = held.clone()
    fixed[[place - first for place in places]] = torch.tensor(right)
    return held, fixed


def elsewhere(given: Sequence[Any], right: Mapping[int, Any]) -> bool:
    """Whether a list holds the right keys of each wrong row at another place.

    Both are arguments of attention, by their places.
    """
    held, whole = (_rows(*(one[place] for place in (2, 3, 4))) for one in (given, right))
    wrong = [keys for keys, other in zip(whole, held, strict=True) if keys and keys != other]
    text = _text(given[4].tolist())
    return bool(wrong) and all(_text(keys) in text for keys in wrong)


def _rows(begin: Tensor, end: Tensor, slots: Tensor) -> list[list[int]]:
    listed = slots.tolist()
    bounds = zip(begin.tolist(), end.tolist(), strict=True)
    return [listed[first:last] for first, last in bounds]


def _text(keys: Sequence[int]) -> str:
    return "".join(f" {key} " for key in keys)


def as_listed(call: OpCall, usual: OpCall, further: Lists) -> dict[int, Any]:
    """Return the arguments of attention, by place, that list for its rows what `usual` lists.

    The mask is the same, because a masked key affects the order in which the others are summed.
    Rows after those of `usual` list `further` keys.
    """
    rows = len(call.inputs[2])
    begin, end, slots, _, most, mask, mask_start = (*usual.inputs[2:], None, None)[:7]
    counts = torch.tensor([len(keys) for keys in further], dtype=torch.int64)
    ends = counts.cumsum(0)
    found = {
        2: torch.cat((begin.cpu(), ends - counts + len(slots)))[:rows],
        3: torch.cat((end.cpu(), ends + len(slots)))[:rows],
        4: torch.cat((slots.cpu(), torch.tensor([key for keys in further for key in keys]).long())),
    }
    given = {place: one.to(call.inputs[place]) for place, one in found.items()}
    given[MOST_PLACE] = max(int(call.inputs[MOST_PLACE]), int(most), *counts.tolist())
    if mask is None or mask_start is None:
        return given | {7: None, 8: None}
    bits = torch.cat((mask, mask.new_ones(int(counts.sum()))))
    starts = torch.cat((mask_start, (ends - counts + len(mask)).to(mask_start)))
    return given | {7: bits, 8: starts[:rows]}
