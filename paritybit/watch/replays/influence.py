"""Repeats a replay with other values in KV slots, to see which slots it really reads.

Index lists do not say everything that a kernel reads: it masks a window by itself, and gets the
tensors of one layer. Other values in slots that no live row reads must change nothing. Other values
in all slots that the live rows read of one tensor must change something.

A rerun counts only if a *control* shows: a change that must show beyond rounding if the arithmetic
of the model lets such values through. Values grow until it does.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.facts import Forward, Row
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Wrong
from paritybit.watch.reading import slots_computed, slots_read
from paritybit.watch.replays.differences import beyond, difference
from paritybit.watch.replays.rerun import LARGEST, Rerun, SavedSlots, Values
from paritybit.watch.replays.values import STEPS, ValueSeed, other_values, sampled

NOTHING_READ = "no live row reads a cached slot"
NO_ROWS = "it is not known which slots the rows read"
SAME_BYTES = "there were no other values to write"
HIDDEN = "no change of what live rows read shows"

FOREIGN = Wrong("depends on slots that no live row reads")


@dataclass(frozen=True)
class Replacement:
    """Slots of a group, int64 [n], and the numbers of the tensors that get drawn values there."""

    group: str
    slots: Tensor
    tensors: Sequence[int]
    draw: ValueSeed

    @classmethod
    def fitting(
        cls, ledger: Ledger, slots: Tensor, tensors: Sequence[int], most: int, draw: ValueSeed
    ) -> "Replacement":
        """Return a change of as many of the slots as have at most `most` bytes."""
        slots = sampled(slots, fitting(ledger, tensors, most), draw.seed)
        return cls(ledger.group.name, slots, tensors, draw)


@dataclass(frozen=True)
class NotTried:
    """A rerun that could not have failed, and the reason."""

    reason: str


Result = Wrong | NotTried | None
"""What a test shows: a wrong read, why it could not have failed, or None if it passed."""


@dataclass(frozen=True)
class LiveReads:
    """The slots that the live rows of a forward read, int64 [n] per group."""

    forward: Forward
    slots: Mapping[str, Tensor]

    @classmethod
    def of(cls, forward: Forward, ledgers: Mapping[str, Ledger]) -> "LiveReads":
        """Return what the rows of a forward read. Groups that no row reads have no slots."""
        return cls(forward, {name: slots_read(forward, one) for name, one in ledgers.items()})

    def states(self, seed: int) -> "LiveReads | None":
        """Return the reads of a row's state alone, or None if no row goes on from a state.

        The seed chooses the row. Rows of a group that replaces its state read one slot each.
        """
        held = [
            (name, row)
            for row in self.forward.rows
            for name in row.slots
            if row.cached > 0 and not appends(row, name)
        ]
        if not held:
            return None
        name, row = held[seed % len(held)]
        mine = row.slots[name][row.cached - 1 : row.cached].to(self.slots[name])
        none = {other: slots[:0] for other, slots in self.slots.items()}
        return replace(self, slots={**none, name: mine[mine >= 0]})

    def kept(self, rerun: Rerun, name: str) -> Tensor:
        """Return the slots of a group whose content may matter, or that may stay as they are."""
        ledger, owned = rerun.ledgers[name], rerun.owned[name]
        spare = owned[~torch.isin(owned, slots_computed(self.forward, ledger))]
        return torch.cat((ledger.reserved, self.slots[name], spare))

    def others(self, rerun: Rerun, draw: ValueSeed) -> list[Replacement]:
        """Return the slots whose content must not matter.

        These are the slots that no live row reads, and those that it computes, which it writes
        first. If there are too many to be saved, some layers are drawn, then slots. Those that the
        rows hold, but do not read, come first.
        """
        found, most = [], LARGEST // (2 * len(rerun.ledgers))
        for number, (name, ledger) in enumerate(rerun.ledgers.items()):
            kept, mine = self.kept(rerun, name), rerun.owned[name]
            free = ledger.usable[:-1].clone()
            free[kept] = False
            free[mine] = False
            rows = [row.slots[name] for row in self.forward.rows if name in row.slots]
            held = ledger.index(torch.cat(rows)).unique() if rows else ledger.reserved[:0]
            held = held[free[held]]
            tensors = some_layers(ledger, int(free.sum()), most, draw.seed)
            free[held] = False
            count, rest = fitting(ledger, tensors, most), free.nonzero().flatten()
            held = sampled(held, count, draw.seed)
            slots = torch.cat((held, sampled(rest, count - len(held), draw.seed)))
            fresh, wrote = mine[~torch.isin(mine, kept)], written(rerun, number)
            found += [
                Replacement(name, slots, tensors, draw),
                Replacement.fitting(ledger, fresh, wrote, most, draw),
            ]
        return found

    def certain(self, rerun: Rerun, draw: ValueSeed) -> list[Replacement]:
        """Return slots that live rows certainly read, in all tensors of as many layers as fit."""
        most = LARGEST // len(rerun.ledgers)
        return [
            Replacement.fitting(
                ledger, slots, some_layers(ledger, len(slots), most, draw.seed), most, draw
            )
            for name, ledger in rerun.ledgers.items()
            if len(slots := self.slots[name])
        ]


def fitting(ledger: Ledger, numbers: Sequence[int], most: int) -> int:
    """Return how many slots have at most `most` bytes in some tensors of a group, at least one."""
    sums = ledger.checksums
    size = sum(sums.row(sums.tensors[n]) * sums.tensors[n].element_size() for n in numbers)
    return max(1, most // max(1, size))


def layers_of(ledger: Ledger) -> list[range]:
    """Return the numbers of the tensors of each layer of a group."""
    found, first = [], 0
    for layer in ledger.group.layers:
        found.append(range(first, first + len(layer.tensors)))
        first += len(layer.tensors)
    return found


def some_layers(ledger: Ledger, slots: int, most: int, seed: int) -> list[int]:
    """Return the tensors of as many drawn layers as fit into `most` bytes, at least of one."""
    layers = layers_of(ledger)
    each = max(1, slots * ledger.checksums.bytes_per_slot // len(layers))
    chosen = sampled(torch.arange(len(layers)), max(1, most // each), seed).tolist()
    return sorted(number for layer in chosen for number in layers[layer])


def written(rerun: Rerun, number: int) -> Sequence[int]:
    """Return the tensors of a group, given its number, that the first run wrote."""
    before, after = rerun.slots[number].rows, rerun.first.owned[number].rows
    pairs = enumerate(zip(before, after, strict=True))
    return [n for n, (one, other) in pairs if not torch.equal(as_integers(one), as_integers(other))]


def foreign(
    reads: LiveReads, shown: bool, rerun: Rerun, seed: int, *, seek: bool = False
) -> Result:
    """Return a wrong read if other values in slots that no live row reads make a difference.

    As a control, slots that live rows read get values of the same size. Without such slots, `shown`
    is whether a control has shown before. A difference within rounding passes, because the other
    values did reach the results. With `seek`, the slot is sought.
    """
    draw = ValueSeed(seed)
    certain = reads.certain(rerun, draw)
    for step in range(STEPS if certain else 0):
        draw = ValueSeed(seed, step)
        mine = [replace(change, draw=draw) for change in certain]
        with changed(rerun, reads, mine, keep=False) as values:
            if shown := beyond(rerun.first, values):
                break
    others = reads.others(rerun, draw)
    with changed(rerun, reads, others) as values:
        found, altered = difference(rerun.first, values), values.altered
    if found is not None:
        if not found.beyond_rounding:
            return None
        return blamed_slot(rerun, reads, others) if seek else replace(FOREIGN, certain=found.kv)
    if shown and altered:
        return None
    return NotTried(SAME_BYTES if shown else HIDDEN if certain else NOTHING_READ)


def blamed_slot(rerun: Rerun, reads: LiveReads, others: Sequence[Replacement]) -> Wrong:
    """Return the wrong read of a slot that no live row reads. The slot is found by halving."""
    change = next((one for one in others if differs(rerun, reads, one)), None)
    while change is not None and len(change.slots) > 1:
        halves = change.slots.split(-(-len(change.slots) // 2))
        parts = [replace(change, slots=half) for half in halves]
        change = next((part for part in parts if differs(rerun, reads, part)), None)
    if change is None:
        return FOREIGN
    slot = int(change.slots)
    text, what = described(reads.forward, change.group, slot)
    return Wrong(text, change.group, slots=(slot,), cause={"what": what})


def differs(rerun: Rerun, reads: LiveReads, change: Replacement) -> bool:
    """Return whether other values in some slots change the results by more than rounding."""
    with changed(rerun, reads, [change]) as values:
        return beyond(rerun.first, values)


def described(forward: Forward, group: str, slot: int) -> tuple[str, str]:
    """Return what reads a slot that no live row reads, as the text and the cause of a finding."""
    for row, places in forward.having(group, slot):
        place = f"slot {slot} ({group}), position {places[-1]} of request {row.request}"
        if places[-1] >= row.cached:
            text = f"depends on what was in {place}, before it was written"
            return text, "a slot is read before it is written"
        text = f"depends on {place}, which is outside of the window of position {row.cached}"
        return text, "a key outside of a window"
    return f"depends on slot {slot} ({group}), which no live row reads", "a slot of no live row"


def only_tokens(rerun: Rerun) -> bool:
    """Return whether a replay returns no numbers, so that the last layer may not show."""
    return not any(one.dtype.is_floating_point for one in rerun.first.outputs.values())


def appends(row: Row, name: str) -> bool:
    """Return whether a row keeps the slots that it reads. A recurrent layer replaces its state."""
    slots = row.slots[name]
    return not bool(torch.isin(slots[row.cached :], slots[row.cached - 1]).any())


@contextmanager
def changed(
    rerun: Rerun, reads: LiveReads, changes: Sequence[Replacement], keep: bool = True
) -> Iterator[Values]:
    """Repeat the replay with other values in some slots, and yield its results.

    With `keep`, slots whose content may matter keep their values, although tensors may overlap.
    """
    rerun.rewind()
    saved = [SavedSlots.of(rerun.ledgers[one.group], one.slots, one.tensors) for one in changes]
    other = [
        other_values(one, reads.slots[change.group], change.draw)
        for one, change in zip(saved, changes, strict=True)
    ]
    kept = {name: reads.kept(rerun, name) for name in rerun.ledgers} if keep else {}
    before = {name: rerun.ledgers[name].checksums.of(slots) for name, slots in kept.items()}
    try:
        for one in other:
            one.restore()
        lost = {
            name: slots[rerun.ledgers[name].checksums.of(slots) != before[name]]
            for name, slots in kept.items()
        }
        now = other
        if any(map(len, lost.values())):
            for one in saved:
                one.restore()
            back = [SavedSlots.of(rerun.ledgers[name], slots) for name, slots in lost.items()]
            for one in (*other, *back):
                one.restore()
            now = [SavedSlots.of(one.ledger, one.slots, one.numbers) for one in saved]
        altered = not all(one.same(two) for one, two in zip(saved, now, strict=True))
        rerun.run()
        yield replace(rerun.values(), altered=altered)
    finally:
        for one in saved:
            one.restore()
