"""Repeats a replay under changed conditions, and restores the state afterwards.

It restores the static inputs, the outputs, the owned slots, and the slots that the first run
changed without owning them. A connector must not report a replay as `repeatable` if it changes any
other state.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers, put, taken
from paritybit.watch.captures import SMALL
from paritybit.watch.facts import Replay, StaticInput
from paritybit.watch.ledger import Ledger, folded

LARGEST = 256 * 2**20
"""The most bytes of owned slots for which a replay is repeated."""

DEEPEST = 4
"""The number of nested containers that are searched for output tensors."""


@dataclass
class Saved:
    """Tensors and copies of their values."""

    pairs: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Saved":
        """Save tensors. A tensor that occurs several times is saved once."""
        unique = {(t.data_ptr(), t.dtype, t.shape, t.stride()): t for t in tensors}
        return cls([(tensor, tensor.clone()) for tensor in unique.values()])

    def restore(self) -> None:
        """Restore the values of the tensors."""
        for tensor, value in self.pairs:
            tensor.copy_(value)


@dataclass
class SavedSlots:
    """Slots of a group and their content: `rows` has [n, ...] for each tensor of the group."""

    ledger: Ledger
    slots: Tensor
    rows: list[Tensor]

    @classmethod
    def of(cls, ledger: Ledger, slots: Tensor) -> "SavedSlots":
        """Save slots of a group."""
        block = ledger.group.block
        return cls(ledger, slots, [taken(t, slots, block) for t in ledger.checksums.tensors])

    def restore(self, numbers: Collection[int] | None = None) -> None:
        """Restore the content of the slots in the tensors with these numbers, by default in all."""
        parts = zip(self.ledger.checksums.tensors, self.rows, strict=True)
        for number, (tensor, rows) in enumerate(parts):
            if numbers is None or number in numbers:
                put(tensor, self.slots, rows, self.ledger.group.block)

    def inverted(self) -> "SavedSlots":
        """Return the same slots with every bit flipped, which certainly differs from now."""
        rows = [(~as_integers(part)).view(part.dtype) for part in self.rows]
        return SavedSlots(self.ledger, self.slots, rows)


def tensors_in(value: object, depth: int = DEEPEST) -> Iterator[Tensor]:
    """Yield the tensors in containers and in the attributes of plain objects."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part, depth - 1)
    elif depth and is_dataclass(value):
        for name in fields(value):
            yield from tensors_in(getattr(value, name.name, None), depth - 1)


@dataclass
class Values:
    """The results of a replay: its outputs by name, and the owned slots of each group."""

    outputs: Mapping[str, Tensor]
    owned: list[SavedSlots]


@dataclass
class Trial:
    """One replay, with its state before the first run and, once `ran` was called, after it."""

    replay: Replay
    owned: Mapping[str, Tensor]
    ledgers: Mapping[str, Ledger]
    inputs: Saved = field(init=False)
    slots: list[SavedSlots] = field(init=False)
    after: list[Saved | SavedSlots] = field(init=False, default_factory=list)
    first: Values = field(init=False)
    possible: bool = field(init=False, default=False)
    """Whether the replay may be repeated: all of its results can be restored."""
    changed: bool = field(init=False, default=False)
    """Whether the replay ran with other inputs, and may have changed other slots."""

    def __post_init__(self) -> None:
        self.inputs = Saved.of(static.tensor for static in self.replay.inputs if kept(static))
        again = self.replay.repeatable and self.small()
        self.slots = self.owned_slots() if again else []

    def small(self) -> bool:
        """Return whether the owned slots are small enough to be saved."""
        owned = sum(
            len(self.owned[name]) * ledger.checksums.bytes_per_slot
            for name, ledger in self.ledgers.items()
        )
        return owned <= LARGEST

    def owned_slots(self) -> list[SavedSlots]:
        """Return copies of the owned slots of all groups."""
        return [SavedSlots.of(ledger, self.owned[name]) for name, ledger in self.ledgers.items()]

    def ran(self, result: object) -> None:
        """Save the state after the first run, whose results the engine uses."""
        if not self.slots:
            return
        outputs = self.replay.outputs()
        inputs = [tensor for tensor, _ in self.inputs.pairs]
        self.first = Values({k: v.clone() for k, v in outputs.items()}, self.owned_slots())
        saved = Saved.of([*inputs, *outputs.values(), *tensors_in(result)])
        self.after = [saved, *self.first.owned]
        self.possible = len(saved.pairs) > len(self.inputs.pairs)

    @contextmanager
    def restoring(self, stray: Sequence[SavedSlots] = ()) -> Iterator[None]:
        """Restore the state after the first run at the end, even after an error.

        A replay may draw random numbers. The next ones that the engine draws stay as they are.
        """
        gpus = {one.device for one in self.ledgers.values() if one.device.type == "cuda"}
        with torch.random.fork_rng(gpus, device_type="cuda"):
            try:
                yield
            finally:
                for saved in [*self.after, *stray]:
                    saved.restore()

    def again(self, changes: Mapping[str, Tensor] = {}) -> None:
        """Repeat the replay from the state before it, with changed tails of some inputs."""
        self.rewind()
        self.repeat(changes)

    def repeat(self, changes: Mapping[str, Tensor]) -> None:
        """Repeat the replay from the current state, with changed tails of some inputs."""
        self.changed |= bool(changes)
        for static in self.replay.inputs:
            if static.name in changes:
                tail(static, static.tensor).copy_(changes[static.name])
        self.replay.run()

    def rewind(self) -> None:
        """Restore the state before the first run."""
        self.inputs.restore()
        for saved in self.slots:
            saved.restore()

    def values(self) -> Values:
        """Return the results of the last run."""
        return Values(self.replay.outputs(), self.owned_slots())


def kept(static: StaticInput) -> bool:
    """Return whether to save an input: it is small, or it has a tail that can be changed."""
    return static.tensor.nbytes <= SMALL or static.live < static.size


def tail(static: StaticInput, tensor: Tensor) -> Tensor:
    """Return a view of the padded part of a static input, or of a tensor with its shape."""
    return tensor.narrow(static.axis, static.live, static.size - static.live)


def overwritten(trial: Trial, poison: SavedSlots, changes: Mapping[str, Tensor] = {}) -> Tensor:
    """Repeat the replay over poisoned slots. Returns which slots it overwrites, bool [n]."""
    checksums = poison.ledger.checksums
    trial.rewind()
    poison.restore()
    before = folded(checksums.of(poison.slots))
    trial.repeat(changes)
    return folded(checksums.of(poison.slots)) != before


def rewritten(trial: Trial, ledger: Ledger, slots: Tensor) -> Tensor:
    """Repeat the replay with other content in some slots. Returns which it writes, bool [n]."""
    saved = SavedSlots.of(ledger, slots)
    with trial.restoring([saved]):
        return overwritten(trial, saved.inverted())


def other_tails(inputs: Sequence[StaticInput], number: int) -> dict[str, Tensor]:
    """Return other valid values for padded tails, by the name of the input.

    Inputs without a tail or without other valid values are omitted. `number` varies the values.
    """
    found = {}
    for index, static in enumerate(inputs):
        if static.valid is None or static.live >= static.size:
            continue
        low, high = static.valid
        if high - low < 2:
            continue
        now = tail(static, static.tensor)
        steps = torch.arange(now.numel(), device=now.device).reshape(now.shape)
        values = (steps + 7919 * number + index) % (high - low) + low
        same = values == now.to(torch.int64)
        found[static.name] = torch.where(same, (values - low + 1) % (high - low) + low, values)
    return found
