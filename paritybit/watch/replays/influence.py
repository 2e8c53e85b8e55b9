"""Repeats a replay with other values in KV slots, to see which slots it really reads.

Index lists do not say everything that a kernel reads: it masks a window by itself, and gets the
tensors of one layer. Other values in slots that no live row reads must change nothing. Other values
in all slots that the live rows read of one tensor must change something.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from paritybit.watch.facts import Forward, Layer
from paritybit.watch.ledger import Ledger
from paritybit.watch.reading import slots_computed, slots_read
from paritybit.watch.replays.differences import Difference, difference
from paritybit.watch.replays.trial import LARGEST, SavedSlots, Trial, Values


@dataclass
class Reads:
    """The slots that the live rows of a forward read, int64 [n] per group."""

    forward: Forward
    slots: Mapping[str, Tensor]

    @classmethod
    def of(cls, forward: Forward, ledgers: Mapping[str, Ledger]) -> "Reads":
        """Return what the rows of a forward read. Groups that no row reads have no slots."""
        return cls(forward, {n: slots_read(forward, one) for n, one in ledgers.items()})

    @property
    def known(self) -> bool:
        """Whether some row reads a slot."""
        return any(len(slots) for slots in self.slots.values())

    def kept(self, trial: Trial, name: str) -> Tensor:
        """Return the slots of a group whose content may matter, or that may stay as they are."""
        ledger, owned = trial.ledgers[name], trial.owned[name]
        spare = owned[~torch.isin(owned, slots_computed(self.forward, ledger))]
        return torch.cat((ledger.reserved, self.slots[name], spare))

    def others(self, trial: Trial) -> dict[str, Tensor]:
        """Return the slots whose content must not matter, per group.

        These are the slots that no live row reads, with those that it computes: it writes them
        before it reads them. If there are too many to be saved, some are drawn.
        """
        found = {}
        for name, ledger in trial.ledgers.items():
            free = ledger.usable[:-1].clone()
            free[self.kept(trial, name)] = False
            slots = free.nonzero().flatten()
            most = LARGEST // max(1, ledger.checksums.bytes_per_slot)
            if len(slots) > most:
                slots = slots[torch.randperm(len(slots), device=slots.device)[:most]]
            found[name] = slots
        return found


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
    slots = [(name, int(one)) for name, all_ in reads.others(trial).items() for one in all_]
    while len(slots) > 1:
        half = len(slots) // 2
        parts = slots[:half], slots[half:]
        slots = next((part for part in parts if differs(trial, reads, part)), [])
    if not slots:
        return Wrong("depends on slots that no live row reads")
    group, slot = slots[0]
    text, cause = described(reads.forward, group, slot)
    return Wrong(text, group, slots=(slot,), cause={"what": cause})


def differs(trial: Trial, reads: Reads, slots: Sequence[tuple[str, int]]) -> bool:
    """Return whether other values in these slots change the results by more than rounding."""
    chosen = {
        name: torch.tensor([slot for group, slot in slots if group == name], device=ledger.device)
        for name, ledger in trial.ledgers.items()
    }
    with changed(trial, reads, {name: one.long() for name, one in chosen.items()}) as values:
        found = difference(trial.first, values)
        return found is not None and found.beyond_rounding


def described(forward: Forward, group: str, slot: int) -> tuple[str, str]:
    """Return what reads a slot that no live row reads, as the text and the cause of a finding."""
    for row in forward.rows:
        held = (row.slots[group] == slot).nonzero().flatten() if group in row.slots else ()
        if len(held):
            position = int(held[-1])
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
    is not tried. Neither is one that does not have numbers.
    """
    for name, slots in reads.slots.items():
        layers = [(one.name, n) for one in groups(trial, name) for n in range(len(one.tensors))]
        number = turn % len(layers)
        layer, which = layers[number]
        mine = SavedSlots.of(trial.ledgers[name], slots).rows[number]
        if not mine.dtype.is_floating_point or not bool(mine.float().any()):
            continue
        with changed(trial, reads, {name: slots}, only=(number,)) as values:
            numbers = any(value.dtype.is_floating_point for value in values.outputs.values())
            if numbers and difference(trial.first, values) is None:
                what = f"tensor {which} of {layer}"
                text = f"does not depend on {what} in the slots that live rows read"
                return Wrong(text, name, layer, cause={"what": f"{what} is not read"})
    return None


def groups(trial: Trial, name: str) -> Sequence[Layer]:
    """Return the layers of a group."""
    return trial.ledgers[name].group.layers


@contextmanager
def changed(
    trial: Trial, reads: Reads, slots: Mapping[str, Tensor], only: Collection[int] = ()
) -> Iterator[Values]:
    """Repeat the replay with other values in some slots, and yield its results.

    With `only`, tensors with these numbers are changed, else all. Tensors of groups may overlap:
    slots whose content may matter keep their values unless they are in `slots`.
    """
    trial.rewind()
    saved = [SavedSlots.of(ledger, slots[n]) for n, ledger in trial.ledgers.items() if n in slots]
    kept = [] if only else [*keeping(trial, reads)]
    try:
        for one in saved:
            other_values(one, only).restore()
        for one in kept:
            one.restore()
        trial.replay.run()
        yield trial.values()
    finally:
        for one in saved:
            one.restore()


def keeping(trial: Trial, reads: Reads) -> Iterator[SavedSlots]:
    """Yield the slots of each group that must keep their values."""
    for name, ledger in trial.ledgers.items():
        yield SavedSlots.of(ledger, reads.kept(trial, name))


def other_values(saved: SavedSlots, only: Collection[int]) -> SavedSlots:
    """Return the slots with other finite values. Values that are no numbers stay as they are."""
    rows = [
        (part.float() * 0.5 + 1).to(part.dtype)
        if part.dtype.is_floating_point and (not only or number in only)
        else part
        for number, part in enumerate(saved.rows)
    ]
    return SavedSlots(saved.ledger, saved.slots, rows)
