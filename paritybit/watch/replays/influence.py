"""Repeats a replay with other values in KV slots, to see which slots it really reads.

Index lists do not say everything that a kernel reads: it masks a window by itself, and gets the
tensors of one layer. Other values in slots that no live row reads must change nothing. Other values
in all slots that the live rows read of one tensor must change something.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.facts import Forward
from paritybit.watch.ledger import Ledger
from paritybit.watch.reading import slots_computed, slots_read
from paritybit.watch.replays.differences import Difference, difference
from paritybit.watch.replays.trial import LARGEST, SavedSlots, Trial, Values

LARGE = 2.0**20
"""The factor of large values. Any weight that float32 has makes them visible."""

WIDE = (torch.float32, torch.float64, torch.bfloat16)
"""Dtypes that have large values."""


@dataclass(frozen=True)
class Change:
    """Slots of a group, int64 [n], and the numbers of the tensors that get other values there.

    Tensors in `large` get large values, so that a key of little weight shows too.
    """

    group: str
    slots: Tensor
    tensors: Sequence[int]
    large: Sequence[int] = ()


@dataclass(frozen=True)
class Reads:
    """The slots that the live rows of a forward read, int64 [n] per group.

    - `changeable`: whether slots may get other values for a moment.
    - `empty`: the tensors that could not be tried, because nothing wrote these slots in them.
    """

    forward: Forward
    slots: Mapping[str, Tensor]
    changeable: bool
    empty: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, forward: Forward, ledgers: Mapping[str, Ledger], changeable: bool) -> "Reads":
        """Return what the rows of a forward read. Groups that no row reads have no slots."""
        slots = {n: slots_read(forward, one) for n, one in ledgers.items()}
        return cls(forward, slots, changeable)

    def known(self, trial: Trial) -> bool:
        """Return whether it is known what the forward reads, and is little enough to be saved."""
        rows = self.changeable and any(row.computed or row.only_reads for row in self.forward.rows)
        sizes = [
            len(self.kept(trial, name)) * ledger.checksums.bytes_per_slot
            for name, ledger in trial.ledgers.items()
        ]
        return rows and sum(sizes) <= LARGEST

    def kept(self, trial: Trial, name: str) -> Tensor:
        """Return the slots of a group whose content may matter, or that may stay as they are."""
        ledger, owned = trial.ledgers[name], trial.owned[name]
        spare = owned[~torch.isin(owned, slots_computed(self.forward, ledger))]
        return torch.cat((ledger.reserved, self.slots[name], spare))

    def others(self, trial: Trial) -> list[Change]:
        """Return the slots whose content must not matter.

        These are the slots that no live row reads, with those that it computes: it writes them
        before it reads them. If there are too many to be saved, some are drawn.
        """
        found = []
        for number, (name, ledger) in enumerate(trial.ledgers.items()):
            free = ledger.usable[:-1].clone()
            free[self.kept(trial, name)] = False
            free[trial.owned[name]] = False
            slots = free.nonzero().flatten()
            most = LARGEST // max(1, ledger.checksums.bytes_per_slot)
            if len(slots) > most:
                drawn = torch.Generator().manual_seed(0)  # The engine's own draws stay as they are.
                chosen = torch.randperm(len(slots), generator=drawn)[:most]
                slots = slots[chosen.to(slots.device)]
            mine = trial.owned[name]
            fresh = mine[~torch.isin(mine, self.kept(trial, name))]
            found.append(Change(name, slots, range(len(ledger.checksums.tensors))))
            found.append(Change(name, fresh, written(trial, number)))
        return found


def written(trial: Trial, number: int) -> Sequence[int]:
    """Return the tensors of a group, given its number, that the first run wrote."""
    before, after = trial.slots[number].rows, trial.first.owned[number].rows
    pairs = enumerate(zip(before, after, strict=True))
    return [n for n, (one, other) in pairs if not torch.equal(as_integers(one), as_integers(other))]


@dataclass(frozen=True)
class Wrong:
    """A wrong read: what a replay does, in which group and layer, at which slot, and why."""

    text: str
    group: str | None = None
    layer: str | None = None
    slots: tuple[int, ...] = ()
    cause: Mapping[str, str] | None = None

    @property
    def key(self) -> str:
        """What is equal for wrong reads of one kind."""
        return self.cause["what"] if self.cause else self.text


def foreign(trial: Trial, reads: Reads) -> Difference | None:
    """Return the difference that other values in slots make that no live row reads."""
    with changed(trial, reads, reads.others(trial)) as values:
        return difference(trial.first, values)


def blamed_slot(trial: Trial, reads: Reads) -> Wrong:
    """Return the wrong read of a slot that no live row reads. The slot is found by halving."""
    left = [
        Change(one.group, slot, one.tensors)
        for one in reads.others(trial)
        for slot in one.slots.split(1)
    ]
    while len(left) > 1:
        half = len(left) // 2
        parts = left[:half], left[half:]
        left = next((part for part in parts if differs(trial, reads, part)), [])
    if not left:
        return Wrong("depends on slots that no live row reads")
    group, slot = left[0].group, int(left[0].slots)
    text, cause = described(reads.forward, group, slot)
    return Wrong(text, group, slots=(slot,), cause={"what": cause})


def differs(trial: Trial, reads: Reads, parts: Sequence[Change]) -> bool:
    """Return whether other values in these slots change the results by more than rounding."""
    kinds = {(part.group, tuple(part.tensors)) for part in parts}
    changes = [
        Change(group, torch.cat([p.slots for p in parts if key_of(p) == (group, tensors)]), tensors)
        for group, tensors in kinds
    ]
    with changed(trial, reads, changes) as values:
        found = difference(trial.first, values)
        return found is not None and found.beyond_rounding


def key_of(change: Change) -> tuple[str, tuple[int, ...]]:
    """Return what changes have in common that can be made together."""
    return change.group, tuple(change.tensors)


def described(forward: Forward, group: str, slot: int) -> tuple[str, str]:
    """Return what reads a slot that no live row reads, as the text and the cause of a finding."""
    for row in forward.rows:
        held = (row.slots[group] == slot).nonzero().flatten().tolist() if group in row.slots else []
        if held:
            position = held[-1]
            place = f"slot {slot} ({group}), position {position} of request {row.request}"
            if position >= row.cached:
                text = f"depends on what was in {place}, before it was written"
                return text, "a slot is read before it is written"
            text = f"depends on {place}, which is outside of the window of position {row.cached}"
            return text, "a key outside of a window"
    return f"depends on slot {slot} ({group}), which no live row reads", "a slot of no live row"


def unread(trial: Trial, reads: Reads, turn: int) -> Wrong | None:
    """Return a tensor whose content in the slots that live rows read changes nothing.

    `turn` chooses one tensor per group. A tensor that has only zeros there was never written, and
    is not tried. Neither is one that does not have numbers. The last layer of a group may be the
    last one of the model, where only the last query of a row matters. A model that has no KV may
    read some layers of another one alone, so that no layer is tried.
    """
    if any(row.only_reads for row in reads.forward.rows):
        return None
    for name, ledger in trial.ledgers.items():
        held = ledger.group.layers
        layers = [(one, n) for one in held for n in range(len(one.tensors))]
        number = turn % len(layers)
        layer, which = layers[number][0].name, layers[number][1]
        last = layers[number][0] is held[-1]
        slots = slots_read(reads.forward, ledger, last=last)
        mine = SavedSlots.of(ledger, reads.slots[name]).rows[number]
        if len(mine) and mine.dtype.is_floating_point and not bool(mine.float().any()):
            reads.empty.append(f"tensor {which} of {layer}")
            continue
        if not len(slots) or not mine.dtype.is_floating_point:
            continue
        with changed(trial, reads, [Change(name, slots, [number])], keep=False) as values:
            numbers = any(value.dtype.is_floating_point for value in values.outputs.values())
            differs = difference(trial.first, values) is not None
        if (numbers or not last) and not differs and not shows(trial, reads, name, number):
            what = f"tensor {which} of {layer}"
            text = f"does not depend on {what} in the slots that live rows read"
            return Wrong(text, name, layer, cause={"what": f"{what} is not read"})
    return None


def shows(trial: Trial, reads: Reads, name: str, number: int) -> bool:
    """Return whether large values of a tensor show in what live rows read of its layer.

    The other tensors of the layer get values that differ from slot to slot: keys do not show, for
    example, if all values are alike or tiny.
    """
    slots, layers = reads.slots[name], trial.ledgers[name].group.layers
    of = [layer for layer in layers for _ in layer.tensors]
    others = [n for n, layer in enumerate(of) if layer is of[number] and n != number]
    with changed(trial, reads, [Change(name, slots, others)], keep=False) as values:
        outputs = {key: value.clone() for key, value in values.outputs.items()}
        first = Values(outputs, values.owned)
    both = Change(name, slots, [*others, number], [number])
    with changed(trial, reads, [both], keep=False) as values:
        return difference(first, values) is not None


@contextmanager
def changed(
    trial: Trial, reads: Reads, changes: Sequence[Change], keep: bool = True
) -> Iterator[Values]:
    """Repeat the replay with other values in some slots, and yield its results.

    Tensors may overlap, so only those that change are written. With `keep`, slots whose content may
    matter keep their values.
    """
    trial.rewind()
    saved = [SavedSlots.of(trial.ledgers[one.group], one.slots) for one in changes]
    kept = [
        SavedSlots.of(ledger, reads.kept(trial, name))
        for name, ledger in trial.ledgers.items()
        if keep
    ]
    try:
        for one, change in zip(saved, changes, strict=True):
            other_values(one, change).restore(change.tensors)
        for one in kept:
            one.restore()
        trial.replay.run()
        yield trial.values()
    finally:
        for one in saved:
            one.restore()


def other_values(saved: SavedSlots, change: Change) -> SavedSlots:
    """Return slots with other finite values in some tensors. What is no number stays as it is.

    Values that are equal in all slots differ afterwards. Only wide dtypes have large values.
    """

    def other(part: Tensor, large: bool) -> Tensor:
        ramp = 1 + torch.arange(len(part), device=part.device) / len(part)
        moved = part.float() * 0.5 + ramp.reshape(-1, *[1] * (part.dim() - 1))
        return (moved * (LARGE if large and part.dtype in WIDE else 1)).to(part.dtype)

    rows = [
        other(part, number in change.large)
        if part.dtype.is_floating_point and number in change.tensors
        else part
        for number, part in enumerate(saved.rows)
    ]
    return SavedSlots(saved.ledger, saved.slots, rows)
