"""slot_ownership: leaks and slots freed too often, that change no byte yet."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.host_arrays import Numbers, on_device
from paritybit.harness.checks.property import Description, EndOfStep, Property
from paritybit.harness.explain.facts import Cause, Holding, Situation
from paritybit.harness.lockstep.bits import any_set
from paritybit.harness.lockstep.observation import Observation, StepEnd
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.allocator import Numbers as AllNumbers
from paritybit.reference.allocator import Owner, Ownership
from paritybit.reference.pool import PoolSizes
from paritybit.subjects.protocol import Offer
from torch import Tensor

RIGHT, ALSO, KNOWN = range(3)
"""Of each cell of the tables: what it must hold, what it may hold as well, if that is known."""


def misheld(world: Ownership) -> list[str]:
    """List what of one world is not held once or free once, and which request holds too much."""
    holders, every = world.holders, world.all
    kinds = (
        ("full page", [owner.full_pages for owner in holders], world.free_full, every.full_pages),
        ("swa page", [owner.swa_pages for owner in holders], world.free_swa, every.swa_pages),
        ("row", [(owner.row,) for owner in holders], world.free_rows, every.rows),
        ("state slot", [(owner.state_slot,) for owner in holders], world.free_states, every.states),
    )
    found = list[str]()
    for what, held, free, numbers in kinds:
        if not _all_once([*chain.from_iterable(held)], free, numbers):
            found += _misheld(what, holders, held, free, numbers)
    return [*found, *_oversized(holders)]


def _all_once(held: list[int | None], free: tuple[int, ...], every: tuple[int, ...]) -> bool:
    """Whether each of `every` is either held or free, and that once. None is held by nobody."""
    count = len(held) - held.count(None) + len(free)
    return count == len(every) and {None, *held, *free} == _with_none(every)


@lru_cache(maxsize=64)
def _with_none(every: tuple[int, ...]) -> frozenset[int | None]:
    """Return some numbers, and None, which is no number."""
    return frozenset((None, *every))


def _misheld(
    what: str,
    holders: Sequence[Owner],
    by_owner: Sequence[Sequence[int | None]],
    free: tuple[int, ...],
    every: Collection[int],
) -> Iterator[str]:
    """Yield, in words, each of `every` that is not held once or free once, and any other."""
    held = [
        (owner.serial, number)
        for owner, numbers in zip(holders, by_owner, strict=True)
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


def _oversized(holders: Iterable[Owner]) -> Iterator[str]:
    """Yield, in words, which requests hold a page without a token, or lack one."""
    for owner in holders:
        needed = -(-owner.length // owner.page_size)
        for kind, pages in (("full", owner.full_pages), ("swa", owner.swa_pages)):
            if len(pages) != needed:
                yield (
                    f"request {owner.serial} has {len(pages)} {kind} pages for "
                    f"{owner.length} tokens"
                )


def right_cells(world: Ownership, sizes: PoolSizes) -> Numbers:
    """Return what the tables of one world must hold, int32 [3, cells]: RIGHT, ALSO, KNOWN.

    The cells of the mapping come first, then those of `req_to_token`. A slot that is held maps
    to the SWA slot beside it, or to 0 where that left the window or no token was written yet.
    KNOWN is 0 where a cell may hold anything: beyond a request's tokens in its row, and in the
    mapping for slots that no request may ever hold, those of the reserved page excepted.
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
    # Of each request, which of the slots its tokens are written to, and by which cells of its row.
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
    """Return the numbers of so many cells, which nobody writes."""
    return np.arange(count)


@lru_cache(maxsize=8)
def cells_of_nobody(
    mapped: int, table_shape: torch.Size, every: AllNumbers, page_size: int
) -> Numbers:
    """Return what `right_cells` does where no request holds a page, which nobody writes."""
    cells = np.zeros((3, mapped + table_shape.numel()), dtype=np.int32)
    cells[KNOWN, slots_of_pages([0, *every.full_pages], page_size)] = 1
    cells[:, mapped - 1] = -1, -1, 1
    cells[KNOWN, mapped : mapped + table_shape[1]] = 0 not in every.rows
    return cells


def slots_of_pages(pages: Sequence[int], page_size: int) -> NDArray[np.int64]:
    """Return the slots of some pages, one page after the other; of page -1 none is above 0."""
    numbers = np.array(pages, dtype=np.int64)
    if page_size == 1:
        return numbers
    return (numbers[:, None] * page_size + np.arange(page_size)).ravel()


def wrong_cells(worlds: Sequence[Ownership], cells: Tensor) -> Tensor:
    """Return which cells of the worlds' tables are not as they must be, bool [worlds, cells].

    `cells` are as they must be, int32 [worlds, 3, cells], or [1, 3, cells] for all worlds alike.
    """
    tables = [table for world in worlds for table in (world.mapping, world.req_to_token.view(-1))]
    held = torch.cat(tables).view(len(worlds), -1)
    right, also, known = cells.unbind(1)
    return (held != right).logical_and_(held != also).logical_and_(known)


def flag(end: StepEnd) -> Flag:
    """Whether something is held twice, or by nobody and not free, or a table says otherwise."""
    both = [end.graph, end.eager]
    alike = holdings(end.graph) == holdings(end.eager)
    if any(misheld(world) for world in (both[:1] if alike else both)):
        return True
    judged = [both] if alike else [[world] for world in both]
    by_cells = [(worlds, right_cells(worlds[0], end.sizes)) for worlds in judged]
    device = end.graph.mapping.device
    if launches.asks_kernels(device):
        return launches.tables_wrong(by_cells)
    flags = [
        any_set(wrong_cells(worlds, on_device(cells[None], device))) for worlds, cells in by_cells
    ]
    return flags[0] if alike else torch.stack(flags).any()


def holdings(world: Ownership) -> tuple[object, ...]:
    """Return who holds what: of the tables what shape they have, and nothing that they hold."""
    return (
        world.mapping.shape,
        world.req_to_token.shape,
        world.holders,
        world.all,
        world.free_full,
        world.free_swa,
        world.free_rows,
        world.free_states,
    )


def describe(end: StepEnd) -> Description:
    """List what is held wrongly, or name the first cell of a table that is wrong."""
    for name, world in (("graph", end.graph), ("eager", end.eager)):
        found = misheld(world)
        if found:
            return f"in the {name} run, {found[0]}", {"world": name, "breaches": found}
    for name, world in (("graph", end.graph), ("eager", end.eager)):
        cells = on_device(right_cells(world, end.sizes), world.mapping.device)
        wrong = wrong_cells([world], cells[None])[0]
        if wrong.any():
            return _describe_cell(name, world, cells, int(wrong.nonzero()[0, 0]))
    raise ValueError("nothing is held wrongly")


def _describe_cell(name: str, world: Ownership, cells: Tensor, cell: int) -> Description:
    """Describe a wrong cell, counted over the mapping and then `req_to_token`."""
    right, mapped = int(cells[RIGHT, cell]), world.mapping.shape[0]
    if cell < mapped:
        held = int(world.mapping[cell])
        where = {"world": name, "table": "full_to_swa_index_mapping", "slot": cell}
        words = f"full slot {cell} is mapped to SWA slot {held}"
    else:
        row, column = divmod(cell - mapped, world.req_to_token.shape[1])
        held = int(world.req_to_token[row, column])
        where = {"world": name, "table": "req_to_token", "row": row, "column": column}
        words = f"row {row}, column {column} of req_to_token is full slot {held}"
    return f"in the {name} run, {words}; expected {right}", {**where, "held": held, "right": right}


def flag_step(observation: Observation) -> Flag:
    """Judge what a step with a forward left."""
    return observation.end is not None and flag(observation.end)


def describe_step(observation: Observation) -> Description:
    """Describe what a step with a forward left."""
    assert observation.end is not None
    return describe(observation.end)


@dataclass(frozen=True)
class Wrong:
    """What is wrong once a step is over: `what` it is, and how to say, of any step, how it is."""

    what: str
    say: Callable[[Ownership], str]


def wrongs(world: Ownership, sizes: PoolSizes) -> Iterator[Wrong]:
    """Yield what is held, or said by a table, wrongly."""
    for what, numbers_of, free_of, every in (
        ("full page", attrgetter("full_pages"), attrgetter("free_full"), world.all.full_pages),
        ("swa page", attrgetter("swa_pages"), attrgetter("free_swa"), world.all.swa_pages),
        ("row", lambda owner: (owner.row,), attrgetter("free_rows"), world.all.rows),
    ):
        for number in (0, *(number for number in every if number)):
            say = partial(_holders_of, number, numbers_of, free_of)
            if not _held_once(say(world), reserved=number not in every):
                yield Wrong(f"{what} {number}", say)
    for owner in world.holders:
        if any(_oversized([owner])):
            yield Wrong(f"request {owner.serial}", partial(_pages_of, owner.serial))
    cells = on_device(right_cells(world, sizes), world.mapping.device)
    for cell in wrong_cells([world], cells[None])[0].nonzero().flatten().tolist():
        yield _wrong_cell(world, sizes, cell)


def _holders_of(
    number: int,
    numbers_of: Callable[[Owner], Iterable[int | None]],
    free_of: Callable[[Ownership], Sequence[int]],
    world: Ownership,
) -> str:
    """Say who holds a page or a row, and how often it is free."""
    by = [f"request {owner.serial}" for owner in world.holders if number in numbers_of(owner)]
    times = free_of(world).count(number)
    free = {0: "not free", 1: "free once"}.get(times, f"free {times} times")
    return f"held by {' and '.join(by) or 'nobody'} and {free}"


def _held_once(said: str, *, reserved: bool) -> bool:
    """Whether a page or row is held once or free once; one that is reserved is neither."""
    if reserved:
        return said == "held by nobody and not free"
    by, _, free = said.removeprefix("held by ").rpartition(" and ")
    return (by == "nobody") == (free == "free once") and " and " not in by and "times" not in free


def _pages_of(serial: int, world: Ownership) -> str:
    """Say how many pages a request has."""
    owner = next((owner for owner in world.holders if owner.serial == serial), None)
    if owner is None:
        return "without pages"
    pages = f"{len(owner.full_pages)} full and {len(owner.swa_pages)} SWA pages"
    return f"with {pages} for {owner.length} tokens"


def _wrong_cell(world: Ownership, sizes: PoolSizes, cell: int) -> Wrong:
    """Return what is wrong of a cell, counted over the mapping and then `req_to_token`."""
    mapped, columns = world.mapping.shape[0], world.req_to_token.shape[1]
    row, column = divmod(cell - mapped, columns)
    place = f"req_to_token[{row}, {column}]"
    if cell < mapped:
        place = f"full_to_swa_index_mapping[{cell}]"

    def say(one: Ownership) -> str:
        held = one.mapping[cell] if cell < mapped else one.req_to_token[row, column]
        cells = right_cells(one, sizes)
        held_by = f"; expected from the pages held: {cells[RIGHT, cell]}"
        return f"{int(held)}{held_by if cells[KNOWN, cell] else ', but no request holds this page'}"

    return Wrong(place, say)


def cause(pair: Pair, schedule: Schedule, step: int) -> tuple[Situation, Cause] | None:
    """Explain what a step left held, free or said wrongly: how it was before, and how it is."""
    pair.begin(schedule)
    before, name = copied(pair.end(0)), ""
    for place, one, upcoming in schedule.ahead():
        before, name = copied(pair.end(place)), one.name
        pair.step(one, place, upcoming=upcoming)
        if place == step:
            break
    end = pair.end(step)
    for which in ("graph", "eager"):
        world = getattr(end, which)
        wrong = next(wrongs(world, end.sizes), None)
        if wrong is not None:
            found = wrong.say(world)
            held = Holding(
                what=wrong.what,
                before=wrong.say(getattr(before, which)),
                found=found,
                since=step,
                step=name,
                world=which,
                both=wrong.say(end.eager) == wrong.say(end.graph),
            )
            return Situation(step, None), Cause("slot bookkeeping", held=held)
    return None


def copied(end: StepEnd) -> StepEnd:
    """Return what a step left with tables of its own, which later steps leave alone."""
    eager, graph = (
        replace(world, mapping=world.mapping.clone(), req_to_token=world.req_to_token.clone())
        for world in (end.eager, end.graph)
    )
    return replace(end, eager=eager, graph=graph)


SLOT_OWNERSHIP = Property(
    id="slot_ownership",
    statement=(
        "each slot and row either has one owner or is free once, and the index tables match "
        "the owners"
    ),
    needs=frozenset({Offer.ALLOCATOR}),
    flag=flag_step,
    describe=describe_step,
    end_of_step=EndOfStep(flag, describe),
    cause_in_play=cause,
)
