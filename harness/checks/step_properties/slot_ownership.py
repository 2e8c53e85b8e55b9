"""slot_ownership: detects leaks and double frees before they change any byte."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import FrameType

import torch
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.host_arrays import on_device
from paritybit.harness.checks.holdings import (
    KNOWN,
    RIGHT,
    claimed,
    columns_of,
    holding,
    left_early,
    misheld,
    oversized,
    owners_differ,
    right_cells,
    token_rows,
    wrong_cells,
)
from paritybit.harness.checks.property import Description, EndOfStep, Property
from paritybit.harness.explain.facts import Cause, Holding, Situation
from paritybit.harness.explain.tracing import LastChange, callers_of, following
from paritybit.harness.lockstep.bits import any_set
from paritybit.harness.lockstep.observation import Observation, StepEnd
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.allocator import Owner, Ownership, PageAllocation
from paritybit.reference.pool import PoolSizes
from torch import Tensor


def flag(end: StepEnd) -> Flag:
    """Whether any slot or row has no single owner or free entry, or a table is wrong.

    It is also set if a page was freed too early, or if the worlds' owners differ.
    """
    if end.graph.holders != end.eager.holders:
        return True
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
    """Return the owners and the shapes of the tables, without the content of the tables."""
    return (
        world.mapping.shape,
        world.req_to_token.shape,
        world.holders,
        world.all,
        world.free_full,
        world.free_swa,
        world.free_rows,
        world.free_states,
        world.free_token_rows,
        world.retracted,
    )


def describe(end: StepEnd) -> Description:
    """List the wrong owners, or name the first wrong cell of a table."""
    for name, world in (("graph", end.graph), ("eager", end.eager)):
        found = misheld(world)
        if found:
            return f"in the {name} run, {found[0]}", {"world": name, "breaches": found}
    differ = owners_differ(end)
    if differ is not None:
        return differ, {"breaches": [differ]}
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
    """Check the state after a step with a forward."""
    return flag(observation.end)


def describe_step(observation: Observation) -> Description:
    """Describe the state after a step with a forward."""
    return describe(observation.end)


LOST = "held by nobody and not free"
"""The description of a leaked page or row."""


@dataclass(frozen=True)
class Wrong:
    """An error after a step.

    - `what`: the name of the wrong page, row or cell.
    - `say`: describes its state in any world.
    - `entry`: its entry in a free list or a table, without owners.
    """

    what: str
    say: Callable[[Ownership], str]
    entry: Callable[[Ownership], object]


def wrongs(world: Ownership, sizes: PoolSizes) -> Iterator[Wrong]:
    """Yield the errors in owners and tables."""
    for what, numbers_of, free_of, every in (
        (
            "full page",
            lambda one: claimed("full_pages", one.holders),
            attrgetter("free_full"),
            world.all.full_pages,
        ),
        (
            "swa page",
            lambda one: claimed("swa_pages", one.holders),
            attrgetter("free_swa"),
            world.all.swa_pages,
        ),
        (
            "row",
            lambda one: [(owner.row,) for owner in one.holders],
            attrgetter("free_rows"),
            world.all.rows,
        ),
        (
            "state slot",
            lambda one: [(owner.state_slot,) for owner in one.holders],
            attrgetter("free_states"),
            world.all.states,
        ),
        ("token row", token_rows, attrgetter("free_token_rows"), world.all.token_rows),
    ):
        for number in (0, *(number for number in every if number)):
            say = partial(_holders_of, number, numbers_of, free_of)
            if not _held_once(say(world), reserved=number not in every):
                yield Wrong(f"{what} {number}", say, partial(_times_free, number, free_of))
    for owner in world.holders:
        if any(oversized([owner])):
            say = partial(_pages_of, owner.serial)
            yield Wrong(f"request {owner.serial}", say, say)
        for place in left_early(owner):
            columns = f"swa page of columns {columns_of(owner, place)} of request {owner.serial}"
            what = f"{columns}, whose next query sees columns from {owner.seen_from} on,"
            say = partial(_held_by_its_owner, owner.serial, place)
            yield Wrong(what, say, say)
    cells = on_device(right_cells(world, sizes), world.mapping.device)
    for cell in wrong_cells([world], cells[None])[0].nonzero().flatten().tolist():
        yield _wrong_cell(world, sizes, cell)


def _holders_of(
    number: int,
    numbers_of: Callable[[Ownership], Sequence[Sequence[int | None]]],
    free_of: Callable[[Ownership], Sequence[int]],
    world: Ownership,
) -> str:
    """Describe the holders of a page or row, and how often it is free."""
    held = zip(holding(world), numbers_of(world), strict=False)
    by = [f"request {serial}" for serial, numbers in held if number in numbers]
    times = _times_free(number, free_of, world)
    free = {0: "not free", 1: "free once"}.get(times, f"free {times} times")
    return f"held by {' and '.join(by) or 'nobody'} and {free}"


def _times_free(
    number: int, free_of: Callable[[Ownership], Sequence[int]], world: Ownership
) -> int:
    """Return how often a page or a row is free."""
    return free_of(world).count(number)


def _held_once(said: str, *, reserved: bool) -> bool:
    """Whether a page or row is held once or free once. A reserved one is neither."""
    if reserved:
        return said == LOST
    by, _, free = said.removeprefix("held by ").rpartition(" and ")
    return (by == "nobody") == (free == "free once") and " and " not in by and "times" not in free


def _twice(said: str) -> bool:
    """Whether a description says that a page or row is held or free once too often."""
    by, _, free = said.removeprefix("held by ").rpartition(" and ")
    return "times" in free or " and " in by or (free == "free once" and by != "nobody")


def _pages_of(serial: int, world: Ownership) -> str:
    """Describe the number of pages of a request."""
    owner = next((owner for owner in world.holders if owner.serial == serial), None)
    if owner is None:
        return "without pages"
    pages = f"{len(owner.full_pages)} full and {len(owner.swa_pages)} SWA pages"
    return f"with {pages} for {owner.length} tokens"


def _held_by_its_owner(serial: int, place: int, world: Ownership) -> str:
    """Describe whether a request has the SWA page at a place."""
    owner = next((owner for owner in world.holders if owner.serial == serial), None)
    if owner is None or place >= len(owner.swa_pages):
        return "not there yet"
    page = owner.swa_pages[place]
    return "free" if page is None else f"page {page}"


def _wrong_cell(world: Ownership, sizes: PoolSizes, cell: int) -> Wrong:
    """Return the error of a cell, counted over the mapping and then `req_to_token`."""
    mapped, columns = world.mapping.shape[0], world.req_to_token.shape[1]
    row, column = divmod(cell - mapped, columns)
    place = f"req_to_token[{row}, {column}]"
    if cell < mapped:
        place = f"full_to_swa_index_mapping[{cell}]"

    def entry(one: Ownership) -> int:
        return int(one.mapping[cell] if cell < mapped else one.req_to_token[row, column])

    def say(one: Ownership) -> str:
        cells = right_cells(one, sizes)
        held_by = f"; expected from the pages held: {cells[RIGHT, cell]}"
        return (
            f"{entry(one)}{held_by if cells[KNOWN, cell] else ', but no request holds this page'}"
        )

    return Wrong(place, say, entry)


def cause(pair: Pair, schedule: Schedule, step: int) -> tuple[Situation, Cause] | None:
    """Explain a wrong owner or table cell: its state before and after, and the lines."""
    before, name, end = _around(pair, schedule, step)
    for which in ("graph", "eager"):
        world = getattr(end, which)
        found_wrong = list(wrongs(world, end.sizes))
        # A line causes a double allocation or free. A leak is caused by a missing line.
        twice = (one for one in found_wrong if _twice(one.say(world)))
        wrong = next(twice, found_wrong[0] if found_wrong else None)
        if wrong is not None:
            found = wrong.say(world)
            was = getattr(before, which)
            serials = {owner.row: owner.serial for owner in (*was.holders, *world.holders)}
            said = partial(_said, getattr(pair, which), wrong, serials)
            _around(pair, schedule, step, watched := LastChange(said, "changed"))
            undone = wrong.entry(was) == wrong.entry(world) or found == LOST
            lines = watched.lines_with_called if undone else watched.lines
            held = Holding(
                what=wrong.what,
                before=wrong.say(was),
                found=found,
                since=step,
                step=name,
                world=which,
                both=wrong.say(end.eager) == wrong.say(end.graph),
            )
            return Situation(step, None), Cause("slot bookkeeping", held=held, made=lines)
    return None


def _said(
    book: RequestBook, wrong: Wrong, serials: Mapping[int, int], frame: FrameType | None
) -> str:
    """Describe the state of an error after a line of a frame has run.

    An allocation in progress counts as held by its request. The request is found by the row, in
    `serials`.
    """
    now = book.ownership()
    held = (_owner(one, serials, book) for one in _allocations(book, frame))
    rows = {owner.row for owner in now.holders}
    further = (owner for owner in held if owner.row not in rows)
    try:
        return wrong.say(replace(now, holders=(*now.holders, *further)))
    except (IndexError, ValueError):  # In the middle of a change.
        return ""


def _allocations(book: RequestBook, frame: FrameType | None) -> list[PageAllocation]:
    """Return the allocations of a book that variables of a frame or its callers hold."""
    found, own = dict[int, PageAllocation](), False
    for one in () if frame is None else (frame, *callers_of(frame)):
        for value in one.f_locals.values():
            own = own or value is book or value is book.allocator
            if isinstance(value, PageAllocation):
                found.setdefault(value.row, value)
    return list(found.values()) if own else []


def _owner(held: PageAllocation, serials: Mapping[int, int], book: RequestBook) -> Owner:
    """Return the future or former owner of an allocation."""
    size = book.pools.sizes.page_size
    return Owner(
        serials.get(held.row, book.admitted),
        held.row,
        held.state_slot,
        len(held.full_pages) * size,
        size,
        tuple(held.full_pages),
        tuple(held.swa_pages),
        shared=held.shared,
    )


def _around(
    pair: Pair, schedule: Schedule, last: int, watched: LastChange | None = None
) -> tuple[StepEnd, str, StepEnd]:
    """Play a schedule up to a step. Returns the owners before it, its name, and those after it.

    A repeated step is played until it first causes an error. `watched` follows its lines.
    """
    pair.begin(schedule)
    before, name = copied(pair.end(0)), ""
    for place, one, upcoming in schedule.ahead(last):
        before, name = copied(pair.end(place)), one.name
        with following(watched) if place == last and watched is not None else nullcontext():
            pair.step(one, place, upcoming=upcoming)
        end = pair.end(place)
        worlds = (end.graph, end.eager) if place == last else ()
        if any(True for world in worlds for _ in wrongs(world, end.sizes)):
            break
    return before, name, pair.end(last)


def copied(end: StepEnd) -> StepEnd:
    """Return a copy that later steps do not change."""
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
    flag=flag_step,
    describe=describe_step,
    end_of_step=EndOfStep(flag, describe),
    cause_in_play=cause,
)
