"""Checks the owners of slots and rows, and the index tables, after a step."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from paritybit.harness.checks.device.host_arrays import Numbers
from paritybit.harness.lockstep.observation import StepEnd
from paritybit.reference.allocator import Numbers as AllNumbers
from paritybit.reference.allocator import Owner, Ownership
from paritybit.reference.pool import PoolSizes
from torch import Tensor

RIGHT, ALSO, KNOWN = range(3)
"""Per cell of the tables: the required value, another permitted value, and whether it is known."""


def misheld(world: Ownership) -> list[str]:
    """List the pages and rows without exactly one owner or free entry, and oversized requests."""
    holders, every = world.holders, world.all
    full, swa = claimed("full_pages", holders), claimed("swa_pages", holders)
    kinds = (
        ("full page", full, world.free_full, every.full_pages),
        ("swa page", swa, world.free_swa, every.swa_pages),
        ("row", [(owner.row,) for owner in holders], world.free_rows, every.rows),
        ("state slot", [(owner.state_slot,) for owner in holders], world.free_states, every.states),
        ("token row", token_rows(world), world.free_token_rows, every.token_rows),
    )
    serials, found = holding(world), list[str]()
    for what, held, free, numbers in kinds:
        if not _all_once([*chain.from_iterable(held)], free, numbers):
            found += _misheld(what, serials, held, free, numbers)
    return [*found, *oversized(holders), *_given_away(holders)]


def claimed(pages: str, holders: Sequence[Owner]) -> list[tuple[int | None, ...]]:
    """Return the pages of each request."""
    return [getattr(owner, pages) for owner in holders]


def _all_once(held: list[int | None], free: tuple[int, ...], every: tuple[int, ...]) -> bool:
    """Whether each of `every` is either held or free, exactly once. None in `held` is no page."""
    count = len(held) - held.count(None) + len(free)
    return count == len(every) and {None, *held, *free} == _with_none(every)


@lru_cache(maxsize=64)
def _with_none(every: tuple[int, ...]) -> frozenset[int | None]:
    """Return the numbers and None."""
    return frozenset((None, *every))


def holding(world: Ownership) -> list[int]:
    """Return the requests that hold anything: running ones, then retracted ones."""
    return [*(owner.serial for owner in world.holders), *(serial for serial, _ in world.retracted)]


def token_rows(world: Ownership) -> list[tuple[int]]:
    """Return the token row of each request, in the order of `holding`."""
    return [
        *((owner.token_row,) for owner in world.holders),
        *((row,) for _, row in world.retracted),
    ]


def _misheld(
    what: str,
    serials: Sequence[int],
    by_owner: Sequence[Sequence[int | None]],
    free: tuple[int, ...],
    every: Collection[int],
) -> Iterator[str]:
    """Yield a message for each of `every` not held or free exactly once, and for any other."""
    held = [
        (serial, number)
        for serial, numbers in zip(serials, by_owner, strict=False)
        for number in numbers
        if number is not None
    ]
    numbers = [number for _, number in held]
    times_free, times_held = Counter(free), Counter(numbers)
    for number in sorted({*every, *numbers, *free}):
        right = 1 if number in every else 0
        if times_free[number] + times_held[number] != right:
            holders_of = [f"request {serial}" for serial, one in held if one == number]
            by = ", ".join(holders_of) or "nobody"
            yield (
                f"{what} {number} is held by {by} and appears {times_free[number]} times in "
                "the free list"
            )


def oversized(holders: Iterable[Owner]) -> Iterator[str]:
    """Yield a message for each request that has a page too many or too few."""
    for owner in holders:
        needed = -(-owner.length // owner.page_size)
        for kind, pages in (("full", owner.full_pages), ("swa", owner.swa_pages)):
            if len(pages) != needed:
                yield (
                    f"request {owner.serial} has {len(pages)} {kind} pages for "
                    f"{owner.length} tokens"
                )


def _given_away(holders: Iterable[Owner]) -> Iterator[str]:
    """Yield a message for each SWA page that was freed although the next query can see it."""
    for owner in holders:
        for place in left_early(owner):
            yield (
                f"the swa page of columns {columns_of(owner, place)} has left request "
                f"{owner.serial}, whose next query sees columns from {owner.seen_from} on"
            )


def left_early(owner: Owner) -> list[int]:
    """Return the places of SWA pages that were freed although the next query can see them."""
    if None not in owner.swa_pages:
        return []
    first = owner.seen_from // owner.page_size
    seen = owner.swa_pages[first : -(-owner.length // owner.page_size)]
    return [first + place for place, page in enumerate(seen) if page is None]


def columns_of(owner: Owner, place: int) -> str:
    """Describe the columns of a page."""
    first = place * owner.page_size
    return str(first) if owner.page_size == 1 else f"{first} to {first + owner.page_size - 1}"


def owners_differ(end: StepEnd) -> str | None:
    """Describe the first difference between the two worlds' owners, or return None."""
    if end.graph.holders == end.eager.holders:
        return None
    eager = {owner.serial: owner for owner in end.eager.holders}
    for owner in end.graph.holders:
        other = eager.pop(owner.serial, None)
        if other is None:
            return f"request {owner.serial} holds slots in the graph run only"
        for name, held, right in zip(owner._fields, owner, other, strict=True):
            if held != right:
                words = f"{name} of request {owner.serial} is {held} in the graph run"
                return f"{words} and {right} in the eager run"
    left = next(iter(eager), None)
    if left is None:
        return "the two runs hold their requests in another order"
    return f"request {left} holds slots in the eager run only"


def right_cells(world: Ownership, sizes: PoolSizes) -> Numbers:
    """Return the required cells of one world's tables, int32 [3, cells]: RIGHT, ALSO, KNOWN.

    The cells of the mapping come first, then those of `req_to_token`. A held slot maps to its SWA
    slot, or to 0 if that left the window or no token was written yet. KNOWN is 0 for cells that
    may have any value: those after a request's tokens in its row, and those of slots that no
    request can hold, except the reserved page.
    """
    mapped, table_shape = world.mapping.shape[0], world.req_to_token.shape
    cells = cells_of_nobody(mapped, table_shape, world.all, sizes.page_size).copy()
    holders = [owner for owner in world.holders if owner.full_pages]
    if not holders:
        return cells
    size = sizes.page_size
    full = slots_of_pages([page for owner in holders for page in owner.full_pages], size)
    swa_pages = [-1 if page is None else page for owner in holders for page in owner.swa_pages]
    swa = np.maximum(slots_of_pages(swa_pages, size), 0)
    cells[RIGHT, full] = swa
    # Per request: the slots of its tokens, and the cells of its row.
    written, numbers, first = [], numbered(cells.shape[1]), 0
    for owner in holders:
        held, row = len(owner.full_pages) * size, mapped + owner.row * table_shape[1]
        tokens = min(owner.length, held)
        written.append((slice(first, first + tokens), numbers[row : row + tokens]))
        first += held
    cell = np.concatenate([of_one for _, of_one in written])
    if len(cell) < len(full):
        full, swa = (np.concatenate([one[part] for part, _ in written]) for one in (full, swa))
    cells[ALSO, full] = swa
    cells[:2, cell] = full
    cells[KNOWN, cell] = 1
    return cells


@lru_cache(maxsize=8)
def numbered(count: int) -> NDArray[np.int64]:
    """Return 0 to count - 1 as a cached read-only array."""
    return np.arange(count)


@lru_cache(maxsize=8)
def cells_of_nobody(
    mapped: int, table_shape: torch.Size, every: AllNumbers, page_size: int
) -> Numbers:
    """Return `right_cells` for a world without requests, as a cached read-only array."""
    cells = np.zeros((3, mapped + table_shape.numel()), dtype=np.int32)
    cells[KNOWN, slots_of_pages([0, *every.full_pages], page_size)] = 1
    cells[:, mapped - 1] = -1, -1, 1
    cells[KNOWN, mapped : mapped + table_shape[1]] = 0 not in every.rows
    return cells


def slots_of_pages(pages: Sequence[int], page_size: int) -> NDArray[np.int64]:
    """Return the slots of pages, one page after the other. Those of page -1 are at most 0."""
    numbers = np.array(pages, dtype=np.int64)
    if page_size == 1:
        return numbers
    return (numbers[:, None] * page_size + np.arange(page_size)).ravel()


def wrong_cells(worlds: Sequence[Ownership], cells: Tensor) -> Tensor:
    """Return which cells of the worlds' tables are wrong, bool [worlds, cells].

    `cells` has the required cells, int32 [worlds, 3, cells], or [1, 3, cells] for all worlds.
    """
    tables = [table for world in worlds for table in (world.mapping, world.req_to_token.view(-1))]
    held = torch.cat(tables).view(len(worlds), -1)
    right, also, known = cells.unbind(1)
    return (held != right).logical_and_(held != also).logical_and_(known)
