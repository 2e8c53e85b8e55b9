"""read_frame: detects rows that read other slots than their own, even if they always do.

It checks the key lists of a forward. A live row must read the slots of its request, and a padded
row may only read the reserved slot 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from paritybit.harness.checks.counted_reads import (
    AS_OFTEN,
    Block,
    Columns,
    CountedReads,
    Slots,
    counted,
    keys_of,
    width_of,
)
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.host_arrays import Numbers, on_device
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import any_set
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Mode, Span
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.subjects.protocol import KeyLists


def columns_read(mode: Mode, span: Span, window: int | None) -> Iterable[Slots | slice]:
    """Return the columns of its request that each live row reads, for each forward of a draft.

    `window` is the number of keys of a row on these layers, or None if it reads all.
    """
    if mode is Mode.TARGET_VERIFY or mode is Mode.DRAFT:
        return _columns_beyond(mode, span, window)
    reach = span.end if window is None else window
    return [slice(max(0, at + 1 - reach), at + 1) for at in span.positions(mode)]


def _columns_beyond(mode: Mode, span: Span, window: int | None) -> Iterator[Slots]:
    """Yield the result of `columns_read` for rows that read tokens other than their request's."""
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
    """Return a node of a request's tree and all its ancestors, from the root down."""
    found = []
    while node >= 0:
        found.append(node)
        node = span.tree[node][1]
    return found[::-1]


def live_reads(observation: Observation, kind: Kind) -> list[list[Slots]]:
    """Return the slots of one sub-pool that each live row must read, per forward of a draft.

    If the request no longer has a slot, the last slot + 1 stands for it.
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
    """Yield the slots of all columns of each request's pages, or `none` for freed pages."""
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
"""The limit of rows times slots up to which reads of all slots are counted.

For larger sub-pools, only slots that some row must read are counted.
"""


def columns_counted(observation: Observation, kind: Kind, rows: int) -> Columns:
    """Return the slots to count for a number of rows."""
    count = observation.layout.sizes.slots(kind)
    if rows * count <= COUNTED_CELLS:
        return Columns(count)
    reads = [read for of_forward in live_reads(observation, kind) for read in of_forward]
    listed = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *reads]))
    return Columns(count, listed[listed < count])


def listed_rows(keys: KeyLists) -> dict[Kind, int]:
    """Return the number of rows with a key list, by sub-pool."""
    return {Kind.FULL: keys.full.begin.shape[0], Kind.SWA: keys.swa.begin.shape[0]}


def blocks_of(observation: Observation, listed: Mapping[Kind, int]) -> list[Block]:
    """Return a block for each sub-pool in which some rows have a list."""
    forwards = forwards_of(observation.mode)
    live = sum(len(span.positions(observation.mode)) for span in observation.graph.spans)
    blocks, first = list[Block](), 0
    for kind, count in listed.items():
        columns = columns_counted(observation, kind, count)
        block = Block(kind, first, count, max(count // forwards, live), forwards, columns)
        blocks.append(block)
        first += block.rows
    return blocks


def forwards_of(mode: Mode) -> int:
    """Return the number of forwards in a step of a mode."""
    return SPECULATION.forwards if mode is Mode.DRAFT else 1


def allowed(observation: Observation, blocks: Sequence[Block]) -> Numbers:
    """Return how often each row must read each of its cells, int32 [rows, cells].

    A padded row may read slot 0 any number of times (AS_OFTEN). Live rows without a list are
    included, so their missing reads are detected.
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
    """Return the counted reads of a step in both sub-pools, or None without key lists."""
    keys = observation.keys
    if keys is None:
        return None
    blocks = blocks_of(observation, listed_rows(keys))
    read = counted(keys, blocks, most_listed(observation, blocks))
    return CountedReads(read, on_device(allowed(observation, blocks), read.device), blocks)


def most_listed(observation: Observation, blocks: Iterable[Block]) -> int:
    """Return the number of keys to count per row: all that it can have.

    If only some slots are counted, it is their number plus the keys of a masked tree.
    """
    few = [block.columns.width for block in blocks if block.columns.slots is not None]
    if few:
        return max(few) + SPECULATION.draft_tokens
    config = observation.layout.configs[Role.TARGET]
    return config.max_context + config.speculation.slots


def flag(observation: Observation) -> Flag:
    """Whether a live row reads slots other than its request's, or a padded row other than 0."""
    keys = observation.keys
    if keys is not None and launches.asks_kernels(keys.full.begin.device):
        blocks = blocks_of(observation, listed_rows(keys))
        if all(block.columns.slots is None for block in blocks):
            most = most_listed(observation, blocks)
            return launches.reads_wrong(keys, blocks, allowed(observation, blocks), most)
    reads = reads_of(observation)
    return reads is not None and any_set(reads.wrong)


def first_wrong(observation: Observation) -> tuple[CountedReads, Block, int] | None:
    """Return the counts and the block of a sub-pool with a wrong row, and its first wrong row."""
    reads = reads_of(observation)
    for block in reads.blocks if reads is not None else ():
        assert reads is not None
        of_kind = reads.of(block)
        rows = of_kind.wrong.any(1).nonzero()
        if len(rows):
            return of_kind, block, int(rows[0, 0])
    return None


def describe(observation: Observation) -> Description:
    """Name the first wrong row, and the slots that it reads by mistake or does not read."""
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
    """Return the slots for a column of a row's counts.

    Invalid slots, such as negative numbers in column -1, are returned as the last slot + 1. Slots
    that are not counted one by one come from the row's list.
    """
    keys = observation.keys
    assert keys is not None
    if column < 0:
        return [columns.count]
    if columns.slots is None or column < columns.width:
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


READ_FRAME = Property(
    id="read_frame",
    statement=(
        "a live row reads only its own request's slots inside the window, and a padded row "
        "reads only slot 0"
    ),
    flag=flag,
    describe=describe,
)
