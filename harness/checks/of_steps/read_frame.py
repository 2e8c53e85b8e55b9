"""read_frame: a row that reads what is not its own, though it always does.

Judged from the index lists that a forward was given. What each live row may read is counted out
from what its request holds, and what a padded row may read is nothing but reserved slot 0.
"""

from collections.abc import Iterator

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


def allowed(observation: Observation, kind: Kind, rows: int) -> Numbers:
    """Return how often each of `rows` rows must read each slot, [rows, slots + 1].

    -1 says that it may read it as often as it likes: slot 0, where the row is padded. Where
    there are fewer rows than live ones, further ones follow, which somebody should read by.
    """
    by_forward = live_reads(observation, kind)
    each = max(rows // len(by_forward), len(by_forward[0]))
    slots = observation.layout.sizes.slots(kind) + 1
    counts = np.zeros((len(by_forward) * each, slots), dtype=np.int32)
    for forward, reads in enumerate(by_forward):
        first = forward * each
        counts[first + len(reads) : first + each, 0] = -1
        if reads:
            reading = np.repeat(np.arange(first, first + len(reads)), [len(read) for read in reads])
            counts[reading, np.concatenate(reads)] = 1
    return counts


def counted(keys: Keys, mask: Tensor | None, slots: int, most: int) -> Tensor:
    """Return how often each row of a list reads each slot, int32 [rows, slots + 1].

    What is no slot counts as one too high. Of a row with more than `most` keys the first are
    counted, and further ones as no slot.
    """
    place = torch.arange(most + 1, device=keys.begin.device)
    listed = keys.begin[:, None] + place
    read = listed < keys.end[:, None]
    found = keys.slots[listed.clamp(0, keys.slots.shape[0] - 1)].to(torch.int64)
    if mask is not None and keys.mask_start is not None:
        bit = (keys.mask_start[:, None] + place).clamp(0, mask.shape[0] - 1)
        read &= mask[bit].to(torch.bool)
    found = torch.where((found < 0) | (found > slots) | (place == most), slots, found)
    counts = torch.zeros((found.shape[0], slots + 1), dtype=torch.int32, device=found.device)
    return counts.scatter_add_(1, found, read.to(torch.int32))


def reads_of(observation: Observation, kind: Kind) -> tuple[Tensor | None, Tensor | None]:
    """Return how often each row reads each slot of a sub-pool, and how often it must.

    Both are None where the forward's index lists are not seen.
    """
    slots = observation.layout.sizes.slots(kind)
    keys, replay = observation.keys, observation.replay
    if keys is not None:
        most = observation.layout.configs[Role.TARGET].max_context + SPECULATION.slots
        read = counted(_of_kind(keys, kind), keys.mask, slots, most)
    elif replay is not None and kind in replay.reads:
        read = torch.from_numpy(_counted_on_host(replay.reads[kind], slots))
    else:
        return None, None
    right = on_device(allowed(observation, kind, read.shape[0]), read.device)
    lacking = right.shape[0] - read.shape[0]
    return torch.nn.functional.pad(read, (0, 0, 0, lacking)) if lacking else read, right


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


def misread(read: Tensor, right: Tensor) -> Tensor:
    """Return which slots a row reads too often or not often enough, bool [rows, slots + 1]."""
    return (read != right) & (right >= 0)


def flag(observation: Observation) -> Tensor | bool:
    """Whether a live row reads other slots than its request's, or a padded one another than 0."""
    found = []
    for kind in Kind:
        read, right = reads_of(observation, kind)
        if read is not None and right is not None:
            found.append(any_set(misread(read, right)))
    return torch.stack(found).any() if found else False


def describe(observation: Observation) -> Description:
    """Name the first row that reads what it must not, or lacks what it must read."""
    for kind in Kind:
        read, right = reads_of(observation, kind)
        if read is None or right is None or not misread(read, right).any():
            continue
        wrong = misread(read, right)
        row = int(wrong.any(1).nonzero()[0, 0])
        slots = wrong[row].nonzero().flatten().tolist()
        more = [slot for slot in slots if read[row, slot] > max(int(right[row, slot]), 0)]
        lacking = [slot for slot in slots if slot not in more]
        live = int(right[row, 0]) >= 0
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
        read, right = reads_of(observation, kind)
        if read is None or right is None or not misread(read, right).any():
            continue
        row = int(misread(read, right).any(1).nonzero()[0, 0])
        by_forward = live_reads(observation, kind)
        each = max(read.shape[0] // len(by_forward), len(by_forward[0]))
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
