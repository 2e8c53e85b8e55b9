"""read_frame: a row that reads what is not its own, though it always does.

Judged from the index lists that a forward was given. What each live row may read is counted out
from what its request holds, and what a padded row may read is nothing but reserved slot 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from paritybit.harness.checks.counted_reads import (
    AS_OFTEN,
    Block,
    Columns,
    CountedReads,
    Slots,
    counted,
    counted_on_host,
    keys_of,
    width_of,
)
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.host_arrays import Numbers, on_device
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.explain.facts import Cause
from paritybit.harness.explain.lists import listed_cause
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.lockstep.bits import any_set
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Mode, Span
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.subjects.protocol import KeyLists, Offer


def columns_read(mode: Mode, span: Span, window: int | None) -> Iterable[Slots | slice]:
    """Return the columns of its request that each live row reads, forward after forward of a draft.

    `window` counts the keys of a row on the layers in question, None where it reads all.
    """
    if mode is Mode.TARGET_VERIFY or mode is Mode.DRAFT:
        return _columns_beyond(mode, span, window)
    reach = span.end if window is None else window
    return [slice(max(0, at + 1 - reach), at + 1) for at in span.positions(mode)]


def _columns_beyond(mode: Mode, span: Span, window: int | None) -> Iterator[Slots]:
    """Yield what `columns_read` returns, of rows that read tokens that are not their request's."""
    columns = np.arange(span.end)
    drafted = columns[span.begin :]
    for forward in range(forwards_of(mode)):
        for row, position in enumerate(span.positions(mode)):
            if mode is Mode.TARGET_VERIFY:
                past = _since(position, window, span.begin)
                yield np.append(columns[past], drafted[_path(span, row)])
            else:
                own = drafted[row * SPECULATION.steps :][: forward + 1]
                yield np.append(columns[_since(position + forward, window, span.begin)], own)


def _since(position: int, window: int | None, end: int) -> slice:
    """Return the columns before `end` that a row at `position` reads."""
    return slice(0 if window is None else max(0, position - window + 1), end)


def _path(span: Span, node: int) -> list[int]:
    """Return a node of a request's tree and all that are above it."""
    found = []
    while node >= 0:
        found.append(node)
        node = span.tree[node][1]
    return found


def live_reads(observation: Observation, kind: Kind) -> list[list[Slots]]:
    """Return the slots of one sub-pool that each live row must read, by forward of a draft.

    A slot is one too high for the sub-pool where the row must read what its request no longer
    has.
    """
    world, layout = observation.graph, observation.layout
    window = layout.configs[Role.TARGET].window if kind is Kind.SWA else None
    owners = {owner.row: owner for owner in world.owners}
    forwards = forwards_of(observation.mode)
    found: list[list[Slots]] = [[] for _ in range(forwards)]
    held = slots_held([owners[span.row] for span in world.spans], kind, layout.sizes.slots(kind))
    for span, slots in zip(world.spans, held, strict=True):
        rows = [slots[read] for read in columns_read(observation.mode, span, window)]
        if forwards == 1:
            found[0] += rows
            continue
        of_forward = len(rows) // forwards
        for forward in range(forwards):
            found[forward] += rows[forward * of_forward : (forward + 1) * of_forward]
    return found


def slots_held(owners: Sequence[Owner], kind: Kind, none: int) -> Iterator[Slots]:
    """Yield the slots of all columns of each request's pages, `none` where it has them no more."""
    if not owners:
        return
    size = owners[0].page_size
    held = [owner.full_pages if kind is Kind.FULL else owner.swa_pages for owner in owners]
    pages = np.array([-1 if page is None else page for of_one in held for page in of_one], np.int64)
    slots = pages if size == 1 else (pages[:, None] * size + np.arange(size)).ravel()
    slots[slots < 0] = none
    last = 0
    for of_one in held:
        first, last = last, last + len(of_one) * size
        yield slots[first:last]


COUNTED_CELLS = 2**23
"""The most rows times slots of which it is counted how often a row reads a slot.

Of larger sub-pools the slots are counted that some row must read; others count as no slot.
"""


def columns_counted(observation: Observation, kind: Kind, rows: int) -> Columns:
    """Return the slots that are counted of the reads of so many rows."""
    sizes = observation.layout.sizes
    count = sizes.slots(kind)
    if rows * count <= COUNTED_CELLS and not sizes.skipped:
        return Columns(count)
    reads = [read for of_forward in live_reads(observation, kind) for read in of_forward]
    listed = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *reads]))
    return Columns(count, listed[listed < count])


def listed_rows(keys: KeyLists) -> dict[Kind, int]:
    """Return how many rows have a list of each sub-pool."""
    return {Kind.FULL: keys.full.begin.shape[0], Kind.SWA: keys.swa.begin.shape[0]}


def blocks_of(observation: Observation, listed: Mapping[Kind, int]) -> list[Block]:
    """Return the rows of each sub-pool of which some rows have a list, one after the other."""
    forwards = forwards_of(observation.mode)
    live = sum(len(span.positions(observation.mode)) for span in observation.graph.spans)
    blocks, first = list[Block](), 0
    for kind, count in listed.items():
        if observation.keys is not None:
            columns = columns_counted(observation, kind, count)
        else:
            columns = Columns(observation.layout.sizes.slots(kind))
        block = Block(kind, first, count, max(count // forwards, live), forwards, columns)
        blocks.append(block)
        first += block.rows
    return blocks


def forwards_of(mode: Mode) -> int:
    """Return how many forwards a step of a mode runs, one after the other."""
    return SPECULATION.forwards if mode is Mode.DRAFT else 1


def allowed(observation: Observation, blocks: Sequence[Block]) -> Numbers:
    """Return how often each row must read what each of its cells counts, int32 [rows, cells].

    AS_OFTEN says that it may read it as often as it likes: slot 0, of a padded row. Live rows
    that have no list are among the rows, so that they are seen to read nothing.
    """
    rows = sum(block.rows for block in blocks)
    width = width_of(blocks)
    counts = np.zeros((rows, width), dtype=np.int32)
    for block in blocks:
        for forward, reads in enumerate(live_reads(observation, block.kind)):
            first = block.first + forward * block.of_forward
            counts[first + len(reads) : first + block.of_forward, 1] = AS_OFTEN
            for cells, read in zip(counts[first : first + len(reads), 1:], reads, strict=True):
                cells[block.columns.of(read)] = 1
    return counts


def reads_of(observation: Observation) -> CountedReads | None:
    """Return how the rows of a step read both sub-pools; None where no index list is seen."""
    keys, replay = observation.keys, observation.replay
    if keys is not None:
        blocks = blocks_of(observation, listed_rows(keys))
        read = counted(keys, blocks, most_listed(observation, blocks))
    elif replay is not None and replay.reads:
        lists = {kind: replay.reads[kind] for kind in Kind if kind in replay.reads}
        blocks = blocks_of(observation, {kind: len(rows) for kind, rows in lists.items()})
        read = torch.from_numpy(counted_on_host(lists, blocks))
    else:
        return None
    return CountedReads(read, on_device(allowed(observation, blocks), read.device), blocks)


def most_listed(observation: Observation, blocks: Iterable[Block]) -> int:
    """Return how many keys of a row are counted: all that it can have.

    Where few slots are counted, as many as there are of them, and those of a tree that is masked.
    """
    few = [block.columns.width for block in blocks if block.columns.slots is not None]
    if few:
        return max(few) + SPECULATION.draft_tokens
    config = observation.layout.configs[Role.TARGET]
    return config.max_context + config.speculation.slots


def flag(observation: Observation) -> Flag:
    """Whether a live row reads other slots than its request's, or a padded one another than 0."""
    keys = observation.keys
    if keys is not None and launches.asks_kernels(keys.full.begin.device):
        blocks = blocks_of(observation, listed_rows(keys))
        if all(block.columns.slots is None for block in blocks):
            most = most_listed(observation, blocks)
            return launches.reads_wrong(keys, blocks, allowed(observation, blocks), most)
    reads = reads_of(observation)
    return reads is not None and any_set(reads.wrong)


def first_wrong(observation: Observation) -> tuple[CountedReads, Block, int] | None:
    """Return the first row that reads wrongly among those of its sub-pool, and these."""
    reads = reads_of(observation)
    for block in reads.blocks if reads is not None else ():
        assert reads is not None
        of_kind = reads.of(block)
        rows = of_kind.wrong.any(1).nonzero()
        if len(rows):
            return of_kind, block, int(rows[0, 0])
    return None


def describe(observation: Observation) -> Description:
    """Name the first row that reads what it must not, or lacks what it must read."""
    found = first_wrong(observation)
    if found is None:
        raise ValueError("every row reads what it must")
    reads, block, row = found
    kind, read, right = block.kind, reads.read[row], reads.right[row]
    more, lacking = list[int](), list[int]()
    for cell in reads.wrong[row].nonzero().flatten().tolist():
        often = read[cell] > right[cell]
        slots = more if often else lacking
        slots += slots_of(observation, kind, row, block.columns, cell - 1)
    live = int(right[1]) != AS_OFTEN
    more, lacking = sorted(set(more)), sorted(set(lacking))
    where = {"kind": str(kind), "row": row, "live": live, "too_many": more, "too_few": lacking}
    words = [
        f"reads {_named(observation, kind, more)}" if more else "",
        f"does not read {_named(observation, kind, lacking)}" if lacking else "",
    ]
    said = " and ".join(word for word in words if word)
    return f"{'live' if live else 'padded'} row {row} {said}", where


def slots_of(
    observation: Observation, kind: Kind, row: int, columns: Columns, column: int
) -> list[int]:
    """Return the slots that a column of a row's counts stands for.

    Whatever is no slot, as negative numbers are in column -1, is given as one too high for the
    sub-pool. Slots that are not counted one by one are read off the row's own list.
    """
    keys = observation.keys
    if column < 0:
        return [columns.count]
    if columns.slots is None or column < columns.width or keys is None:
        return [columns.slot(column)]
    of_kind = keys_of(keys, kind)
    begin, end = int(of_kind.begin[row]), int(of_kind.end[row])
    listed = of_kind.slots[begin:end].tolist()
    if keys.mask is not None and of_kind.mask_start is not None:
        first = int(of_kind.mask_start[row])
        taken = keys.mask[first : first + len(listed)].tolist()
        listed = [slot for slot, bit in zip(listed, taken, strict=True) if bit]
    others = {slot if 0 <= slot < columns.count else columns.count for slot in listed}
    return sorted(others - set(columns.slots.tolist())) or [columns.count]


def _named(observation: Observation, kind: Kind, slots: list[int]) -> str:
    """Name slots of a sub-pool, the first with its owner."""
    if slots[0] >= observation.layout.sizes.slots(kind):
        return "an invalid slot, or more keys than a request can have"
    owner = observation.graph.owner_of(kind, slots[0])
    others = f" and {len(slots) - 1} more" if len(slots) > 1 else ""
    return f"{kind} slot {slots[0]} of {owner}{others}"


def cause(recorded: RecordedForward) -> Cause | None:
    """Explain the first row that reads what it must not: what is wrong with its list."""
    observation = recorded.observation
    found = None if observation is None else first_wrong(observation)
    if observation is None or found is None:
        return None
    _, block, row = found
    by_forward = live_reads(observation, block.kind)
    forward, place = divmod(row, block.of_forward)
    live = place < len(by_forward[forward])
    slots = by_forward[forward][place].tolist() if live else []
    return listed_cause(recorded, block.kind, (forward, place), slots if live else None)


READ_FRAME = Property(
    id="read_frame",
    statement=(
        "a live row reads only its own request's slots inside the window, and a padded row "
        "reads only slot 0"
    ),
    needs=frozenset({Offer.READS}),
    flag=flag,
    describe=describe,
    cause=cause,
)
