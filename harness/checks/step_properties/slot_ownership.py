"""slot_ownership: detects leaks and double frees before they change any byte."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import StepEnd
from paritybit.reference.allocator import Owner, Ownership
from paritybit.reference.config import Kind

Pages = Sequence[int | None]


def judge_end(end: StepEnd) -> Description | None:
    """List the wrong owners, or name the first wrong cell of an index table."""
    runs = (("graph", end.graph), ("eager", end.eager))
    for run, ownership in runs:
        found = list(breaches(ownership))
        if found:
            return f"in the {run} run, {found[0]}", {"run": run, "breaches": found}
    different = _owners_differ(end)
    if different is not None:
        return different, {"breaches": [different]}
    for run, ownership in runs:
        cell = _wrong_cell(run, ownership, end.sizes.page_size)
        if cell is not None:
            return cell
    return None


def breaches(ownership: Ownership) -> Iterator[str]:
    """Yield each page or row without exactly one owner or free entry, and each wrong request."""
    holders, every = ownership.holders, ownership.all
    retracted = ownership.retracted
    serials = [*(owner.serial for owner in holders), *(serial for serial, _ in retracted)]
    token_rows = [
        *((owner.token_row,) for owner in holders),
        *((row,) for _, row in retracted),
    ]
    kinds: tuple[tuple[str, list[Pages], tuple[int, ...], tuple[int, ...]], ...] = (
        ("full page", [one.full_pages for one in holders], ownership.free_full, every.full_pages),
        ("swa page", [one.swa_pages for one in holders], ownership.free_swa, every.swa_pages),
        ("row", [(one.row,) for one in holders], ownership.free_rows, every.rows),
        ("state slot", [(o.state_slot,) for o in holders], ownership.free_states, every.states),
        ("token row", [*token_rows], ownership.free_token_rows, every.token_rows),
    )
    for what, by_owner, free, numbers in kinds:
        held = [number for of_one in by_owner for number in of_one if number is not None]
        if len(held) + len(free) != len(numbers) or {*held, *free} != set(numbers):
            yield from _not_once(what, serials, by_owner, free, numbers)
    for owner in holders:
        yield from _wrong_pages(owner)


def _not_once(
    what: str,
    serials: Sequence[int],
    by_owner: Sequence[Pages],
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
    times_free, times_held = Counter(free), Counter(number for _, number in held)
    for number in sorted({*every, *times_held, *times_free}):
        if times_free[number] + times_held[number] != (number in every):
            holders = [f"request {serial}" for serial, one in held if one == number]
            yield (
                f"{what} {number} is held by {', '.join(holders) or 'nobody'} and appears "
                f"{times_free[number]} times in the free list"
            )


def _wrong_pages(owner: Owner) -> Iterator[str]:
    """Yield a message if a request has a page too many or too few, or lost one that it can see."""
    size = owner.page_size
    needed = -(-owner.length // size)
    for kind, pages in (("full", owner.full_pages), ("swa", owner.swa_pages)):
        if len(pages) != needed:
            yield f"request {owner.serial} has {len(pages)} {kind} pages for {owner.length} tokens"
    for place in range(owner.seen_from // size, min(needed, len(owner.swa_pages))):
        if owner.swa_pages[place] is None:
            columns = str(place) if size == 1 else f"{place * size} to {(place + 1) * size - 1}"
            yield (
                f"the swa page of columns {columns} has left request {owner.serial}, whose next "
                f"query sees columns from {owner.seen_from} on"
            )


def _owners_differ(end: StepEnd) -> str | None:
    """Describe the first difference between the owners of the two runs, or return None."""
    pairs = zip_longest(end.graph.holders, end.eager.holders)
    differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if differing is None:
        return None
    graph, eager = (one or "no further owner" for one in differing)
    return f"the graph run has {graph}, and the eager run has {eager}"


def _wrong_cell(run: str, ownership: Ownership, size: int) -> Description | None:
    """Describe the first cell of the mapping or of `req_to_token` that contradicts the owners."""
    mapping, table = (one.cpu().numpy() for one in (ownership.mapping, ownership.req_to_token))
    right_mapping, unwritten = required_mapping(ownership, size)
    wrong = (mapping != right_mapping) & (mapping != unwritten) & (right_mapping != ANY)
    if wrong.any():
        slot = int(np.flatnonzero(wrong)[0])
        where = {"table": "full_to_swa_index_mapping", "slot": slot}
        mapped = f"full slot {slot} is mapped to SWA slot"
        return _describe_cell(run, where, mapped, int(mapping[slot]), int(right_mapping[slot]))
    rows = [(owner.row, np.array(owner.slots(Kind.FULL))) for owner in ownership.holders]
    if 0 not in ownership.all.rows:
        rows.append((0, np.zeros(table.shape[1], dtype=np.int64)))
    for row, right_cells in sorted(rows, key=lambda pair: pair[0]):
        columns = np.flatnonzero(table[row, : len(right_cells)] != right_cells)
        if len(columns):
            column = int(columns[0])
            where = {"table": "req_to_token", "row": row, "column": column}
            mapped = f"row {row}, column {column} of req_to_token is full slot"
            value, right = int(table[row, column]), int(right_cells[column])
            return _describe_cell(run, where, mapped, value, right)
    return None


def _describe_cell(
    run: str, where: dict[str, Any], mapped: str, value: int, right: int
) -> Description:
    message = f"in the {run} run, {mapped} {value}; expected {right}"
    return message, {"run": run, **where, "value": value, "right": right}


ANY = -2
"""A required value that stands for any value."""


def required_mapping(
    ownership: Ownership, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two permitted values for each cell of the mapping, or ANY.

    A held slot maps to its SWA slot, or to 0 if that left the window. The slots of a request's last
    page that no token was written to may also map to 0. All other slots map to 0, and the last
    element of the mapping is -1.
    """
    offsets = np.arange(size)
    right = np.full(len(ownership.mapping), ANY)
    right[_slots((0, *ownership.all.full_pages), offsets)] = 0
    right[-1] = -1
    other = right.copy()
    for owner in ownership.holders:
        pages = list(zip(owner.full_pages, owner.swa_pages, strict=False))
        slots = _slots([page for page, _ in pages], offsets)
        has_swa = np.array([[swa is not None] for _, swa in pages], dtype=bool).reshape(-1, 1)
        mapped = np.where(has_swa, _slots([swa or 0 for _, swa in pages], offsets), 0)
        right[slots] = mapped
        written = _slots(range(len(pages)), offsets) < owner.length
        other[slots] = np.where(written, mapped, 0)
    return right, other


def _slots(pages: Sequence[int], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of pages, [pages, page size]. `offsets` are those of a page's slots."""
    return np.array(pages, dtype=np.int64).reshape(-1, 1) * len(offsets) + offsets


SLOT_OWNERSHIP = Property(
    id="slot_ownership",
    statement=(
        "each slot and row either has one owner or is free once, and the index tables match "
        "the owners"
    ),
    judge_end=judge_end,
)
