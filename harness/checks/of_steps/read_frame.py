"""read_frame: a row that reads what is not its own, though it always does.

Judged from the index lists that a forward was given. What each live row may read is counted out
from what its request holds, and what a padded row may read is nothing but reserved slot 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.checks.host_arrays import Numbers, on_device
from harness.checks.property import Description, Property
from harness.explain.facts import Cause
from harness.explain.lists import listed_cause
from harness.explain.recorded import RecordedForward
from harness.lockstep.bits import any_set
from harness.lockstep.observation import Observation
from reference.batch import Mode, Span
from reference.config import SPECULATION, Kind, Role
from subjects.protocol import KeyLists, Keys, Offer

Slots = NDArray[np.int64]


def columns_read(mode: Mode, span: Span, window: int | None) -> Iterator[Slots | slice]:
    """Yield the columns of its request that each live row reads, forward after forward of a draft.

    `window` counts the keys of a row on the layers in question, None where it reads all.
    """
    columns = np.arange(span.end)
    drafted = columns[span.begin :]
    for forward in range(SPECULATION.forwards if mode is Mode.DRAFT else 1):
        for row, position in enumerate(span.positions(mode)):
            if mode is Mode.TARGET_VERIFY:
                past = _since(position, window, span.begin)
                yield np.append(columns[past], drafted[_path(span, row)])
            elif mode is Mode.DRAFT:
                own = drafted[row * SPECULATION.steps :][: forward + 1]
                yield np.append(columns[_since(position + forward, window, span.begin)], own)
            else:
                yield _since(position, window, position + 1)


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
    forwards = SPECULATION.forwards if observation.mode is Mode.DRAFT else 1
    found: list[list[Slots]] = [[] for _ in range(forwards)]
    for span in world.spans:
        owner = owners[span.row]
        size = owner.page_size
        held = owner.full_pages if kind is Kind.FULL else owner.swa_pages
        pages = np.array([-1 if page is None else page for page in held])
        slots = (pages[:, None] * size + np.arange(size)).ravel()
        slots[slots < 0] = layout.sizes.slots(kind)
        rows = [slots[read] for read in columns_read(observation.mode, span, window)]
        each = len(rows) // forwards
        for forward in range(forwards):
            found[forward] += rows[forward * each : (forward + 1) * each]
    return found


COUNTED_CELLS = 2**23
"""The most rows times slots of which it is counted how often a row reads a slot.

Of larger sub-pools the slots are counted that some row must read; others count as no slot.
"""


@dataclass(frozen=True)
class Columns:
    """The slots that are counted, in ascending order, None for all `count` of a sub-pool."""

    count: int
    slots: Slots | None = None

    @property
    def width(self) -> int:
        """How many are counted, what is none of them apart."""
        return self.count if self.slots is None else len(self.slots)

    def of(self, slots: Slots) -> Slots:
        """Return the columns of slots that are counted; one too high is what is no slot."""
        return slots if self.slots is None else np.searchsorted(self.slots, slots)

    def of_found(self, slots: Tensor) -> Tensor:
        """Return the columns of slots of 0 to `count`; the last one is what is not counted."""
        if self.slots is None:
            return slots
        number = torch.full((self.count + 1,), self.width, device=slots.device)
        listed = torch.from_numpy(self.slots).to(slots.device)
        number[listed] = torch.arange(self.width, device=slots.device)
        return number[slots]

    def slot(self, column: int) -> int:
        """Return the slot of a column; `count` is what is not counted."""
        if self.slots is None or column == self.width:
            return min(column, self.count)
        return int(self.slots[column])


def columns_counted(observation: Observation, kind: Kind, rows: int) -> Columns:
    """Return the slots that are counted of the reads of so many rows."""
    count = observation.layout.sizes.slots(kind)
    if rows * count <= COUNTED_CELLS:
        return Columns(count)
    reads = [read for of_forward in live_reads(observation, kind) for read in of_forward]
    listed = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *reads]))
    return Columns(count, listed[listed < count])


def allowed(observation: Observation, kind: Kind, rows: int, columns: Columns) -> Numbers:
    """Return how often each of `rows` rows must read each slot that is counted, and no slot.

    That is [rows, columns + 1].
    -1 says that it may read it as often as it likes: slot 0, where the row is padded. Where
    there are fewer rows than live ones, further ones follow, which somebody should read by.
    """
    by_forward = live_reads(observation, kind)
    each = max(rows // len(by_forward), len(by_forward[0]))
    counts = np.zeros((len(by_forward) * each, columns.width + 1), dtype=np.int32)
    for forward, reads in enumerate(by_forward):
        first = forward * each
        counts[first + len(reads) : first + each, 0] = -1
        if reads:
            reading = np.repeat(np.arange(first, first + len(reads)), [len(read) for read in reads])
            counts[reading, columns.of(np.concatenate(reads))] = 1
    return counts


def counted(keys: Keys, mask: Tensor | None, columns: Columns, most: int) -> Tensor:
    """Return how often each row of a list reads each slot, int32 [rows, columns + 1].

    What is no slot counts as one too high. Of a row with more than `most` keys the first are
    counted, and further ones as no slot.
    """
    slots = columns.count
    place = torch.arange(most + 1, device=keys.begin.device)
    listed = keys.begin[:, None] + place
    read = listed < keys.end[:, None]
    found = keys.slots[listed.clamp(0, keys.slots.shape[0] - 1)].to(torch.int64)
    if mask is not None and keys.mask_start is not None:
        bit = (keys.mask_start[:, None] + place).clamp(0, mask.shape[0] - 1)
        read &= mask[bit].to(torch.bool)
    found = torch.where((found < 0) | (found > slots) | (place == most), slots, found)
    shape = found.shape[0], columns.width + 1
    counts = torch.zeros(shape, dtype=torch.int32, device=found.device)
    return counts.scatter_add_(1, columns.of_found(found), read.to(torch.int32))


@dataclass(frozen=True)
class CountedReads:
    """How often each row reads each slot that is counted, and how often it must."""

    read: Tensor
    right: Tensor
    columns: Columns

    @property
    def wrong(self) -> Tensor:
        """Which slots a row reads too often or not often enough, bool [rows, columns + 1]."""
        return (self.read != self.right) & (self.right >= 0)


def reads_of(observation: Observation, kind: Kind) -> CountedReads | None:
    """Return how the rows of a step read a sub-pool; None where its index lists are not seen."""
    slots = observation.layout.sizes.slots(kind)
    keys, replay = observation.keys, observation.replay
    columns = Columns(slots)
    if keys is not None:
        of_kind = _of_kind(keys, kind)
        columns = columns_counted(observation, kind, of_kind.begin.shape[0])
        read = counted(of_kind, keys.mask, columns, most_listed(observation, columns))
    elif replay is not None and kind in replay.reads:
        read = torch.from_numpy(_counted_on_host(replay.reads[kind], slots))
    else:
        return None
    right = on_device(allowed(observation, kind, read.shape[0], columns), read.device)
    lacking = right.shape[0] - read.shape[0]
    read = torch.nn.functional.pad(read, (0, 0, 0, lacking)) if lacking else read
    return CountedReads(read, right, columns)


def most_listed(observation: Observation, columns: Columns) -> int:
    """Return how many keys of a row are counted: all that it can have.

    Where few slots are counted, as many as there are of them, and those of a tree that is masked.
    """
    if columns.slots is not None:
        return columns.width + SPECULATION.draft_tokens
    return observation.layout.configs[Role.TARGET].max_context + SPECULATION.slots


def _of_kind(keys: KeyLists, kind: Kind) -> Keys:
    return keys.full if kind is Kind.FULL else keys.swa


def _counted_on_host(rows: object, slots: int) -> Numbers:
    """Return how often each of some lists has each slot."""
    assert isinstance(rows, list | tuple)
    counts = np.zeros((len(rows), slots + 1), dtype=np.int32)
    for row, listed in enumerate(rows):
        for slot in listed:
            counts[row, slot if 0 <= slot < slots else slots] += 1
    return counts


def flag(observation: Observation) -> Tensor | bool:
    """Whether a live row reads other slots than its request's, or a padded one another than 0."""
    seen = [reads for kind in Kind if (reads := reads_of(observation, kind)) is not None]
    found = [any_set(reads.wrong) for reads in seen]
    return torch.stack(found).any() if found else False


def describe(observation: Observation) -> Description:
    """Name the first row that reads what it must not, or lacks what it must read."""
    for kind in Kind:
        reads = reads_of(observation, kind)
        if reads is None or not reads.wrong.any():
            continue
        row = int(reads.wrong.any(1).nonzero()[0, 0])
        read, right = reads.read[row], reads.right[row]
        columns = reads.wrong[row].nonzero().flatten().tolist()
        more, lacking = list[int](), list[int]()
        for column in columns:
            often = read[column] > max(int(right[column]), 0)
            slots = more if often else lacking
            slots += slots_of(observation, kind, row, reads.columns, column)
        live = int(right[0]) >= 0
        where = {
            "kind": str(kind),
            "row": row,
            "live": live,
            "too_many": more,
            "too_few": lacking,
        }
        words = [
            f"reads {_named(observation, kind, more)}" if more else "",
            f"does not read {_named(observation, kind, lacking)}" if lacking else "",
        ]
        said = " and ".join(word for word in words if word)
        return f"{'live' if live else 'padded'} row {row} {said}", where
    raise ValueError("every row reads what it must")


def slots_of(
    observation: Observation, kind: Kind, row: int, columns: Columns, column: int
) -> list[int]:
    """Return the slots that a column of a row's counts stands for, what is no slot as one too high.

    Those that are not counted one by one are read off the row's own list.
    """
    keys = observation.keys
    if columns.slots is None or column < columns.width or keys is None:
        return [columns.slot(column)]
    of_kind = _of_kind(keys, kind)
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
        return "what is no slot, or keys beyond all that a request can have"
    owner = observation.graph.owner_of(kind, slots[0])
    others = f" and {len(slots) - 1} more" if len(slots) > 1 else ""
    return f"{kind} slot {slots[0]} of {owner}{others}"


def cause(recorded: RecordedForward) -> Cause | None:
    """Explain the first row that reads what it must not: what is wrong with its list."""
    observation = recorded.observation
    if observation is None:
        return None
    for kind in Kind:
        reads = reads_of(observation, kind)
        if reads is None or not reads.wrong.any():
            continue
        row = int(reads.wrong.any(1).nonzero()[0, 0])
        by_forward = live_reads(observation, kind)
        each = max(reads.read.shape[0] // len(by_forward), len(by_forward[0]))
        forward, place = divmod(row, each)
        live = place < len(by_forward[forward])
        slots = by_forward[forward][place].tolist() if live else []
        return listed_cause(recorded, kind, (forward, place), slots if live else None)
    return None


READ_FRAME = Property(
    id="read_frame",
    statement="a live row reads its own request's slots in its window, a padded row slot 0 alone",
    needs=frozenset({Offer.READS}),
    flag=flag,
    describe=describe,
    cause=cause,
)
