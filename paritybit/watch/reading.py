"""Collects the reads and writes of a forward's rows, as flat tensors on the host."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from paritybit.watch.bits import EMPTY, as_integers, taken
from paritybit.watch.chains import UNKNOWN, Chains
from paritybit.watch.facts import ELSEWHERE, Forward, Group, Row, first_seen
from paritybit.watch.ledger import NEVER, Ledger
from paritybit.watch.observations import Reads

DISTINCT = 0.75
"""The share of elements in which slots of different tokens must differ on average.

With fewer, as when small numbers are quantised to zero, equal bytes do not tell tokens apart.
"""

COMPARED = 64
"""The number of slots with which one is compared."""


@dataclass(frozen=True)
class Writes:
    """The slots that the rows of a forward compute: one entry per row and position.

    `row` is the index of the row. `must` is True if the forward must write the slot.
    """

    slots: Tensor
    chain: Tensor
    request: Tensor
    position: Tensor
    row: Tensor
    must: Tensor

    def of(self, at: Tensor) -> "Writes":
        """Return some of them. `at` is bool [n]."""
        return Writes(*(one[at] for one in vars(self).values()))


def owned(forward: Forward, ledger: Ledger, fresh: Writes | None) -> Tensor:
    """Return the slots of a group that a forward may write, int64 [n]. `fresh` are its writes."""
    if forward.owned is None:
        return ledger.reserved[:0] if fresh is None else fresh.slots
    given = forward.owned.get(ledger.group.name)
    # The engine may change its own tensor before the forward ends.
    return ledger.reserved[:0] if given is None else ledger.index(given).clone()


def repeated(values: Iterable[int], counts: Iterable[int]) -> Tensor:
    """Repeat each value as often as its count says, int64 [n]. numpy takes less time for few."""
    given, times = (torch.tensor([*one], dtype=torch.int64).numpy() for one in (values, counts))
    return torch.from_numpy(given.repeat(times))


def ranges(spans: Sequence[tuple[int, int]]) -> Tensor:
    """Concatenate half-open ranges. Returns the value of each entry, int64 [n]."""
    counts = [last - first for first, last in spans]
    ends = accumulate(counts)
    shifts = [last - end for (_, last), end in zip(spans, ends, strict=True)]
    return repeated(shifts, counts).add_(torch.arange(sum(counts)))


def positions_of(rows: Iterable[Row]) -> Tensor:
    """Return the computed positions of rows, one after the other, int64 [n]."""
    return ranges([(row.cached, row.cached + row.computed) for row in rows])


def tokens_at(
    rows: Sequence[Row] | None, places: Iterable[tuple[int, int, int]]
) -> list[int | None]:
    """Return the tokens of rows, each by its row and the number of its computed position."""
    found = list[int | None]()
    for at, place, _ in places:
        rest = () if rows is None else rows[at].tokens[rows[at].cached :][place : place + 1]
        found.append(rest[0] if rest else None)
    return found


def hashes(forward: Forward, chains: Chains) -> list["array[int]"]:
    """Return the hash at each position, for each row."""
    return [
        chains.hashes(
            f"{forward.model}{row.request}", row.tokens, row.cached + row.computed, row.space
        )
        for row in forward.rows
    ]


def first_read(row: Row, group: Group) -> int:
    """Return the first cached position that a row reads in a group, or `row.cached` for none."""
    if not row.computed or group.name not in row.slots:
        return row.cached
    return first_seen(row.window or group.window, row.cached)


def outside(row: Row, earlier: Sequence[Row], ledger: Ledger) -> Tensor | None:
    """Return the slots that a row holds although its window left them, int64 [n].

    `earlier` are the rows of the last two forwards of its request. Slots that something else wrote
    or needs are left out. Returns None if the window has left none.
    """
    group = ledger.group
    if group.name not in row.slots or len(earlier) < 2:
        return None
    first = min(first_read(one, group) for one in (row, *earlier)) // group.page_size
    slots = row.slots[group.name][: first * group.page_size]
    if not len(slots):
        return None
    place, position = ledger.indices(slots), torch.arange(len(slots))
    usable = ledger.usable[place]
    place, position = place[usable], position[usable]
    mine = ledger.request[place] == ledger.names.number(row.request)
    mine &= ledger.position[place] == position  # A table may name a slot for two positions.
    kept = [slot for slot in place[mine].tolist() if ledger.still_exclusive(slot)]
    return torch.tensor(kept, dtype=torch.int64)


def slots_read(forward: Forward, ledger: Ledger, last: bool = False) -> Tensor:
    """Return the slots of cached positions that the rows of a forward read, int64 [n].

    With `last`, only what the last query of each row surely reads: some kernels leave out the
    oldest key of a window.
    """
    name = ledger.group.name
    parts = []
    for row in forward.rows:
        window, first = row.window or ledger.group.window, first_read(row, ledger.group)
        if last and window is not None:
            slack = isinstance(window, int) and window > 2
            first = max(first, first_seen(window, row.cached + row.computed - 1, slack))
        if name in row.slots:
            parts.append(row.slots[name][first : row.cached])
    return ledger.index(torch.cat(parts)) if parts else ledger.reserved[:0]


def slots_computed(forward: Forward, ledger: Ledger) -> Tensor:
    """Return the slots that the rows of a forward must write, int64 [n]."""
    name = ledger.group.name
    parts = [
        row.slots[name][row.cached : row.cached + row.computed - row.spare]
        for row in forward.rows
        if name in row.slots
    ]
    return ledger.index(torch.cat(parts)) if parts else ledger.reserved[:0]


@dataclass(frozen=True)
class Positions:
    """The positions of the rows of a forward in a group, from the first that each row reads on.

    `slots`, `chain` (the hashes), `row` (the index) and `position` are int64 [n]. `cached` has the
    entries of cached positions, and `computed` the others, int64 each.
    """

    slots: Tensor
    chain: Tensor
    row: Tensor
    position: Tensor
    cached: Tensor
    computed: Tensor

    def part(self, entries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Return the slots, hashes, rows and positions of some entries, or None for none."""
        columns = self.slots, self.chain, self.row, self.position
        slots, chain, row, position = (one.index_select(0, entries) for one in columns)
        return (slots, chain, row, position) if len(slots) else None


def positions(forward: Forward, ledger: Ledger, chain: list["array[int]"]) -> Positions | None:
    """Return the positions of the rows in a group, or None if there are none.

    `chain` has the hashes of each row.
    """
    name, hashes, slots = ledger.group.name, array("q"), list[Tensor]()
    spans, rows = list[tuple[int, int]](), list[tuple[int, int]]()
    for at, row in enumerate(forward.rows):
        first, last = first_read(row, ledger.group), row.cached + row.computed
        if first < last and name in row.slots:
            hashes += chain[at][first:last]
            slots.append(row.slots[name][first:last])
            spans.append((first, last))
            rows.append((at, row.cached))
    if not spans:
        return None
    counts = [last - first for first, last in spans]
    position, every = ranges(spans), torch.cat(slots).to("cpu", torch.int64)
    cached = position < repeated((one for _, one in rows), counts)
    parts = [one.nonzero().flatten() for one in (cached, ~cached)]
    if bool((every == ELSEWHERE).any()):
        parts = [one[every[one] != ELSEWHERE] for one in parts]
    return Positions(
        every,
        torch.frombuffer(hashes, dtype=torch.int64),
        repeated((at for at, _ in rows), counts),
        position,
        *parts,
    )


def reads(
    forward: Forward, number: int, ledger: Ledger, given: Positions | None, fresh: Writes | None
) -> Reads | None:
    """Return the reads of the rows in a group, or None if there are none.

    The ledger must have just been scanned. `given` are the positions of the rows, and `fresh` the
    writes of the forward. Call `resolve` before judging, because hashes may be provisional.
    """
    if given is None or (part := given.part(given.cached)) is None:
        return None
    slots, hashed, row, position = part
    missing = ~ledger.usable.index_select(0, ledger.indices(slots))
    place = slots.masked_fill(missing, 0)
    held = ledger.chain.index_select(0, place)
    numbers = (column.index_select(0, place) for column in ledger.numbers)
    checksum, now, request, _, written, freed = numbers
    found = Reads(
        number=number,
        forward=forward,
        ledger=ledger,
        row=row,
        position=position,
        slots=slots,
        expected=hashed,
        judged=(held != UNKNOWN) & (hashed != UNKNOWN) & ~missing,
        missing=missing,
        held=held,
        checksum=checksum,
        now=now,
        request=request,
        written=written,
        freed=freed,
    )
    if fresh is not None and len(fresh.slots):
        mine = torch.zeros_like(ledger.usable)
        mine[fresh.slots] = True
        if bool(mine.index_select(0, place).any()):
            written_now(found, fresh)
    return found


def written_now(reads: Reads, fresh: Writes) -> None:
    """Update reads of slots that another row of the same forward writes.

    Each layer writes before it reads, so a row can share a prefix while another row computes it.
    Its own writes replace tokens that have left its window, after it has read them.
    """
    order = fresh.slots.argsort()
    slots = fresh.slots[order]
    at = torch.searchsorted(slots, reads.slots).clamp(max=len(slots) - 1)
    now = (slots[at] == reads.slots) & (fresh.row[order][at] != reads.row) & ~reads.missing
    reads.held[now] = fresh.chain[order][at][now]
    reads.judged[now] = reads.expected[now] != UNKNOWN
    reads.checksum[now], reads.written[now] = 0, reads.number


def resolve(reads: Reads, chains: Chains) -> int:
    """Replace provisional hashes by final ones, in place. Returns how many are unresolved."""
    differ = (reads.judged & (reads.held != reads.expected)).nonzero().flatten()
    if not len(differ):
        return 0
    held, expected = reads.held[differ].tolist(), reads.expected[differ].tolist()
    held = [chains.final(value) for value in held]
    expected = [chains.final(value) for value in expected]
    open_ = [
        one != other and bool((one | other) & 1) for one, other in zip(held, expected, strict=True)
    ]
    reads.held[differ] = torch.tensor(held, dtype=torch.int64)
    reads.expected[differ] = torch.tensor(expected, dtype=torch.int64)
    reads.judged[differ] = ~torch.tensor(open_, dtype=torch.bool)
    reads.ledger.chain[reads.slots[differ]] = reads.held[differ]
    return sum(open_)


def adopt_hashes(reads: Reads) -> None:
    """Record the hashes that rows imply for slots that were written unwatched.

    If rows read such a slot for different tokens, at most one is right. The others are judged.
    """
    unseen = (reads.held == UNKNOWN) & ~reads.unwritten
    if not bool(unseen.any()):
        return
    slots, expected, chain = reads.slots[unseen], reads.expected[unseen], reads.ledger.chain
    chain[slots] = expected
    reads.held[unseen] = chain[slots]
    reads.judged[unseen] = chain[slots] != expected


def adopt_checksums(reads: Reads) -> None:
    """Record the checksums of slots that were written unwatched and that rows read."""
    slots = reads.slots[~reads.unwritten & (reads.checksum == 0)]
    reads.ledger.checksum[slots] = reads.ledger.scanned[slots]


def writes(forward: Forward, ledger: Ledger, given: Positions | None) -> Writes | None:
    """Return the writes of the rows in a group, or None if there are none."""
    if given is None or (part := given.part(given.computed)) is None:
        return None
    rows = forward.rows
    slots, hashes, row, position = part
    requests = torch.tensor([ledger.names.number(one.request) for one in rows], dtype=torch.int32)
    musts = torch.tensor([one.cached + one.computed - one.spare for one in rows])
    mine = slots, hashes, requests[row], position.int(), row, position < musts[row]
    real = ledger.usable[ledger.indices(mine[0])].nonzero().flatten()
    return Writes(*(mine if len(real) == len(slots) else (one[real] for one in mine)))


def written(writes: Writes, ledger: Ledger, changed: Tensor) -> Tensor:
    """Return which slots hold the KV of their new tokens, bool [n].

    Their bytes changed, or they were last written for the same tokens.
    """
    return changed[writes.slots] | known(writes, ledger)


def known(writes: Writes, ledger: Ledger) -> Tensor:
    """Return which slots were last written for the same tokens as now, bool [n]."""
    return (ledger.chain[writes.slots] == writes.chain) & (writes.chain != UNKNOWN)


class Unchanged(NamedTuple):
    """A slot that a forward computes, and whose bytes did not change.

    `row`, `position` and `chain` are those of the forward, and the rest is the slot's entry in the
    ledger. `valid` says that the entry is of the slot's present bytes.
    """

    slot: int
    row: int
    position: int
    chain: int
    forward: int
    held: int
    held_position: int
    request: int
    scanned: int
    valid: bool

    @classmethod
    def of(cls, writes: Writes, at: Tensor, ledger: Ledger) -> Iterator["Unchanged"]:
        """Yield some entries of the writes of a forward."""
        slots = writes.slots[at]
        mine = (slots, *(one[at] for one in (writes.row, writes.position, writes.chain)))
        held = ledger.forward, ledger.chain, ledger.position, ledger.request, ledger.scanned
        valid = ledger.checksum[slots] == ledger.scanned[slots]
        columns = (*mine, *(column[slots] for column in held), valid)
        return map(cls._make, zip(*(column.tolist() for column in columns), strict=True))


def left(
    forward: Forward, one: Unchanged, ledger: Ledger, chains: Chains, warm: bool, fresh: Tensor
) -> bool | None:
    """Return whether a forward left alone a slot that it computes, or None if nobody knows.

    Keys depend on the position and the token, so equal bytes for another position or another token
    mean that the slot was not written, if slots are distinct at all. With the same token after
    other ones, the bytes may be equal. With `warm`, a slot that was never written while it was
    watched may have got its content from a warm-up. `fresh` are the slots that the forward wrote.
    """
    if one.forward == NEVER:
        filled = one.scanned != EMPTY
        return None if warm and filled else distinct(ledger, one.slot, fresh) or None
    # If something else changed the slot since, its entry says nothing of its bytes.
    if one.held == UNKNOWN or not one.valid:
        return None
    if one.held_position != one.position:
        return distinct(ledger, one.slot, fresh) or None
    held = chains.final(one.held)
    if held == chains.final(one.chain):
        return False
    writer = ledger.names.name(one.request)
    if forward.model or writer is None:  # A draft model may get another token than its row names.
        return None
    before = chains.token(writer, one.position, held)
    token = forward.rows[one.row].tokens[one.position]
    other = before is not None and token is not None and before != token
    return (other and distinct(ledger, one.slot, fresh)) or None


def distinct(ledger: Ledger, slot: int, fresh: Tensor) -> bool:
    """Return whether a slot differs from slots of other tokens in most elements.

    `fresh` are slots that the forward wrote, which the ledger does not know yet.
    """
    other = (ledger.forward > NEVER) & (ledger.chain != ledger.chain[slot])
    other[fresh] = True
    other[slot] = False
    slots = other.nonzero().flatten()
    slots = slots[:: 1 + len(slots) // COMPARED]
    mine = torch.full_like(slots, slot)
    differing = elements = 0
    for tensor in ledger.checksums.tensors:
        one, others = (
            as_integers(taken(tensor, which, ledger.group.block)) for which in (mine, slots)
        )
        differing += int((one != others).sum())
        elements += others.numel()
    return differing > DISTINCT * elements


def note(
    forward: Forward,
    writes: Writes,
    ledger: Ledger,
    chains: Chains,
    changed: Tensor,
    number: int,
    warm: bool = False,
) -> Tensor:
    """Record the writes of a forward in the ledger, which must have just been scanned.

    `warm` is that of `left`. Returns which slots the forward did not write although it must, bool
    [n]. Such a slot keeps its entry, against which later reads are judged. The content of a slot
    that may or may not have been written is unknown.
    """
    wrote = written(writes, ledger, changed)
    missing = torch.zeros_like(wrote)
    unknown, fresh, places = list[int](), writes.slots[wrote], (~wrote).nonzero().flatten()
    for at, one in zip(places.tolist(), Unchanged.of(writes, places, ledger), strict=True):
        alone = left(forward, one, ledger, chains, warm, fresh)
        if alone is None:
            unknown.append(one.slot)
        else:
            wrote[at], missing[at] = not alone, alone
    mine = wrote.nonzero().flatten()
    slots, chain, request, position = (
        values if len(mine) == len(wrote) else values[mine]
        for values in (writes.slots, writes.chain, writes.request, writes.position)
    )
    ledger.write(slots, chain, request, position, number)
    if unknown:
        slots = torch.tensor(unknown)
        ledger.forget(slots)
        ledger.mark_in_use(slots)
    return writes.must & missing
