"""Repeats a replay under changed conditions, and restores the state afterwards.

It restores the static inputs, the outputs, the owned slots, and the slots that the first run
changed without owning them. A connector must give a reason to run a replay `once` if it changes any
other state.

Slots change, and a replay runs again, only within `Rerun.restoring`. It asks the gate, which bars
both while the engine may copy KV elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers, put, taken
from paritybit.watch.captures import SMALL
from paritybit.watch.facts import Replay, StaticInput
from paritybit.watch.ledger import Ledger

LARGEST = 32 * 2**20
"""The most bytes of slots that are saved at once."""

TOO_LARGE = "more than 32 MiB of slots are written"
NO_OUTPUTS = "there are no outputs to compare"

NOT_OPEN = "slots may change only within Rerun.restoring"

DEEPEST = 4
"""The number of nested containers that are searched for output tensors."""


class BarredError(Exception):
    """Slots may not change now. The message is the reason."""


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
    """Slots of a group and their content in some of its tensors.

    `numbers` are those of the tensors, and `rows` has [n, ...] for each.
    """

    ledger: Ledger
    slots: Tensor
    numbers: Sequence[int]
    rows: list[Tensor]

    @classmethod
    def of(
        cls, ledger: Ledger, slots: Tensor, numbers: Sequence[int] | None = None
    ) -> "SavedSlots":
        """Save slots of a group in the tensors with these numbers, by default in all."""
        tensors, block = ledger.checksums.tensors, ledger.group.block
        numbers = range(len(tensors)) if numbers is None else numbers
        there = slots.to(ledger.checksums.device)  # Once, and not for each tensor.
        return cls(ledger, slots, numbers, [taken(tensors[n], there, block) for n in numbers])

    def restore(self) -> None:
        """Restore the content of the slots. The ledger must be open."""
        if not self.ledger.open:
            raise RuntimeError(NOT_OPEN)
        tensors, there = self.ledger.checksums.tensors, self.slots.to(self.ledger.checksums.device)
        for number, rows in zip(self.numbers, self.rows, strict=True):
            put(tensors[number], there, rows, self.ledger.group.block)

    def same(self, other: "SavedSlots") -> bool:
        """Return whether other content of the same slots has the same bits."""
        pairs = zip(self.rows, other.rows, strict=True)
        return all(torch.equal(as_integers(one), as_integers(two)) for one, two in pairs)

    def inverted(self) -> "SavedSlots":
        """Return the same slots with every bit flipped, which certainly differs from now."""
        rows = [(~as_integers(part)).view(part.dtype) for part in self.rows]
        return SavedSlots(self.ledger, self.slots, self.numbers, rows)


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
    """The results of a replay: its outputs by name, and the owned slots of each group.

    `altered` is whether the replay ran with other bytes in some slots.
    """

    outputs: Mapping[str, Tensor]
    owned: list[SavedSlots]
    altered: bool = False

    def kept(self) -> "Values":
        """Return the results with copies of the outputs, which the next run overwrites."""
        return replace(self, outputs={name: one.clone() for name, one in self.outputs.items()})


@dataclass
class Rerun:
    """One replay, with its state before the first run and, once `ran` was called, after it.

    `gate` returns why slots may not change now, or None.
    """

    replay: Replay
    owned: Mapping[str, Tensor]
    ledgers: Mapping[str, Ledger]
    gate: Callable[[], str | None]
    barred: str | None = None
    """Why the replay may not be repeated, or None if nothing is known against it."""
    inputs: Saved = field(init=False)
    slots: list[SavedSlots] = field(init=False)
    after: list[Saved | SavedSlots] = field(init=False, default_factory=list)
    first: Values = field(init=False)
    saved: bool = field(init=False, default=False)
    """Whether all results of the first run can be restored."""
    changed: bool = field(init=False, default=False)
    """Whether the replay ran with other inputs, and may have changed other slots."""

    def __post_init__(self) -> None:
        size = sum(
            len(self.owned[name]) * ledger.checksums.bytes_per_slot
            for name, ledger in self.ledgers.items()
        )
        self.barred = self.barred or self.replay.once or (TOO_LARGE if size > LARGEST else None)
        self.slots = [] if self.barred else self.owned_slots()
        inputs = [] if self.barred else self.replay.inputs
        self.inputs = Saved.of(
            static.tensor
            for static in inputs
            if static.tensor.nbytes <= SMALL or static.live < static.size
        )

    def owned_slots(self) -> list[SavedSlots]:
        """Return copies of the owned slots of all groups."""
        return [SavedSlots.of(ledger, self.owned[name]) for name, ledger in self.ledgers.items()]

    def ran(self, result: object) -> None:
        """Save the state after the first run, whose results the engine uses."""
        self.barred = self.barred or self.gate()
        if self.barred:
            return
        values = self.values()
        self.first = values.kept()
        inputs = [tensor for tensor, _ in self.inputs.pairs]
        saved = Saved.of([*inputs, *values.outputs.values(), *tensors_in(result)])
        self.after = [saved, *self.first.owned]
        self.saved = len(saved.pairs) > len(self.inputs.pairs)
        self.barred = None if self.saved else NO_OUTPUTS

    def changes(self, ledger: Ledger, slots: Tensor) -> Tensor | None:
        """Return which tensors of a group have other bytes in some slots than before the first run.

        The result is bool [tensors, n], or None if the state before is not known. Owned slots that
        are not saved count as changed.
        """
        before = next((one for one in self.slots if one.ledger is ledger), None)
        if before is None:
            return None
        place = torch.full((ledger.slots,), -1)
        place[before.slots] = torch.arange(len(before.slots))
        at = place[slots]
        changed = torch.ones(len(before.rows), len(slots), dtype=torch.bool)
        changed[:, at >= 0] = differing(before, SavedSlots.of(ledger, before.slots))[:, at[at >= 0]]
        return changed

    @property
    def possible(self) -> bool:
        """Whether the replay may be repeated now."""
        return self.saved and self.gate() is None

    @contextmanager
    def restoring(self, stray: Sequence[SavedSlots] = ()) -> Iterator[None]:
        """Allow changes of slots. Restore the state after the first run at the end, in any case.

        The random numbers that the engine draws next stay as they are. Raises BarredError.
        """
        if (reason := self.gate()) is not None:
            raise BarredError(reason)
        devices = {one.checksums.device for one in self.ledgers.values()}
        gpus = [device for device in devices if device.type == "cuda"]
        with torch.random.fork_rng(gpus, device_type="cuda"):
            for ledger in self.ledgers.values():
                ledger.open = True
            try:
                yield
            finally:
                for saved in [*self.after, *stray]:
                    saved.restore()
                for ledger in self.ledgers.values():
                    ledger.open = False

    def run(self) -> None:
        """Run the replay again, from the current state."""
        if not all(ledger.open for ledger in self.ledgers.values()):
            raise RuntimeError(NOT_OPEN)
        self.replay.run()

    def run_eagerly(self) -> Values:
        """Run the batch without the graph, from the state before the replay."""
        assert self.replay.eager is not None
        self.rewind()
        return Values(self.replay.eager(), self.owned_slots()).kept()

    def again(self, changes: Mapping[str, Tensor] = {}) -> None:
        """Repeat the replay from the state before it, with changed tails of some inputs."""
        self.rewind()
        self.changed |= bool(changes)
        for static in self.replay.inputs:
            if static.name in changes:
                tail(static, static.tensor).copy_(changes[static.name])
        self.run()

    def rewind(self) -> None:
        """Restore the state before the first run."""
        self.inputs.restore()
        for saved in self.slots:
            saved.restore()

    def padding(self) -> list[Tensor]:
        """Return what the last run computed for padding: its outputs, and digests of its KV."""
        kv = [one.checksums.of(one.reserved) for one in self.ledgers.values()]
        return [*kv, *(as_integers(part).clone() for part in self.replay.padding())]

    def values(self) -> Values:
        """Return the results of the last run."""
        return Values(self.replay.outputs(), self.owned_slots())


def tail(static: StaticInput, tensor: Tensor) -> Tensor:
    """Return a view of the padded part of a static input, or of a tensor with its shape."""
    return tensor.narrow(static.axis, static.live, static.size - static.live)


def differing(one: SavedSlots, other: SavedSlots) -> Tensor:
    """Return in which tensors the same slots have other bytes, bool [tensors, n], on the host."""
    pairs = zip(one.rows, other.rows, strict=True)
    parts = [(as_integers(a) != as_integers(b))[:, None].flatten(1).any(1) for a, b in pairs]
    return torch.stack(parts).cpu()


def overwritten(rerun: Rerun, poison: SavedSlots) -> Tensor:
    """Repeat the replay over poisoned slots. Returns what it overwrites, bool [tensors, n]."""
    rerun.rewind()
    poison.restore()
    rerun.run()
    return differing(poison, SavedSlots.of(poison.ledger, poison.slots, poison.numbers))


def rewritten(rerun: Rerun, ledger: Ledger, slots: Tensor) -> Tensor:
    """Repeat the replay with other content in some slots.

    Returns in which tensors it writes them, bool [tensors, n].
    """
    saved = SavedSlots.of(ledger, slots)
    with rerun.restoring([saved]):
        return overwritten(rerun, saved.inverted())


def other_tails(inputs: Sequence[StaticInput], number: int) -> dict[str, Tensor]:
    """Return other valid values for padded tails, by the name of the input.

    Inputs without a tail or without other valid values are omitted. Values are those of an earlier
    replay, or drawn with the seed `number`, each other than the present one.
    """
    found = {static.name: static.earlier for static in inputs if static.earlier is not None}
    drawing = torch.Generator().manual_seed(number)
    for static in inputs:
        if static.valid is None or static.live >= static.size:
            continue
        low, high = static.valid
        if high - low < 2:
            continue
        now = tail(static, static.tensor)
        values = torch.randint(low, high, now.shape, generator=drawing).to(now.device)
        same = values == now.to(torch.int64)
        found[static.name] = torch.where(same, (values - low + 1) % (high - low) + low, values)
    return found
