"""Lists of keys as arguments of attention: those that would list other keys than they do."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, zip_longest
from typing import Any

import torch
from paritybit.harness.explain.first_difference import key_places, keys_of
from paritybit.reference.ops import OpCall
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""What is held, and what is right."""

Lists = Sequence[Sequence[int]]
"""The keys of each row of an attention."""

MOST_PLACE = 6
MASK, MASK_PLACE = "mask", 7
MASK_START, MASK_START_PLACE = "mask_start", 8
"""The arguments of attention for the most keys of a row, the mask, and where a row of it begins."""

FURTHEST = 64
"""How many places further on or back it is looked for what a row ought to list."""


def spelled_lists(calls: Sequence[tuple[OpCall, Lists]]) -> Iterator[tuple[OpCall, bool, Pair]]:
    """Yield the arguments that, put right, make some attention ops list the keys that are right.

    Each with the first op that is given it, and whether it lists slots. These are put right where
    they stand if that is right for all rows. Otherwise each row begins and ends where the keys
    stand that it ought to list. Nothing is yielded of ops of which neither can be done.
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
            for held, mended in _moved(call, right):
                if held.data_ptr() not in seen:
                    seen.add(held.data_ptr())
                    yield call, False, (held.clone(), mended)


def _in_place(group: Sequence[tuple[OpCall, Lists]]) -> Pair | None:
    """Return the slots that some ops list from, and those that are right in the same places."""
    found: dict[int, int] = {}
    for call, right in group:
        for row, keys in enumerate(right):
            for place, key in zip_longest(key_places(call, row), keys):
                if place is None or key is None or found.setdefault(place, key) != key:
                    return None
    first, last = min(found), max(found)
    held = group[0][0].inputs[4][first : last + 1].to(torch.int64).cpu().clone()
    mended = held.clone()
    mended[[place - first for place in found]] = torch.tensor(list(found.values()))
    return held, mended


def _moved(call: OpCall, right: Lists) -> Iterator[Pair]:
    """Yield where the rows of an op begin, and where they end, with what is right, if that differs.

    Nothing where no place is found for what a row ought to list.
    """
    bounds = [_bounds(call, row, keys) for row, keys in enumerate(right)]
    known = [found for found in bounds if found is not None]
    if len(known) < len(bounds):
        return
    for held, mended in zip(call.inputs[2:4], zip(*known, strict=True), strict=True):
        if held.tolist() != list(mended):
            yield held, torch.tensor(mended, dtype=held.dtype)


def _bounds(call: OpCall, row: int, right: Sequence[int]) -> tuple[int, int] | None:
    """Return from where to where a row lists what is right, as near as possible to what it does."""
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
    """Return where the mask of each row begins, and where it does if that alone is put right.

    None where no beginning lists what is right, or where rows that begin or end elsewhere do.
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
    """Return a mask with which an attention lists what is right, and where each row's begins.

    None where some row does not list all that it ought to. Rows behind those of `right` list all.
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
    """Return the keys of each row of an attention."""
    return [keys_of(call, row) for row in range(len(call.inputs[2]))]


def right_lists(call: OpCall, usual: OpCall, *, padded: bool) -> list[list[int]]:
    """Return the keys of each row of an attention, of live rows those of `usual`.

    With `padded` those of padded rows are nothing but the reserved slot.
    """
    held, live = lists_of(call), len(usual.inputs[2])
    further = held[live:]
    if padded:
        further = [keys if set(keys) <= {0} else [0] for keys in further]
    return [*lists_of(usual)[: len(held)], *further]


def row_listed(call: OpCall, row: int, right: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return what is listed for a row, masked keys too, and the same with its keys put right."""
    first, places = int(call.inputs[2][row]), key_places(call, row)
    if len(places) != len(right):
        return torch.tensor(keys_of(call, row)), torch.tensor(right)
    held = call.inputs[4][first : int(call.inputs[3][row])].to(torch.int64).cpu().clone()
    mended = held.clone()
    mended[[place - first for place in places]] = torch.tensor(right)
    return held, mended


def elsewhere(given: Sequence[Any], right: Mapping[int, Any]) -> bool:
    """Whether a list has, at other places, what each row that lists something else ought to list.

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

    With the same mask: a key that takes no part decides how the others are added up. The rows
    behind those of `usual` list `further` keys.
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
