"""Keeps a pair's KV around a step, so that it can be compared and restored.

`Copies` keeps copies of all KV. `Twins` is for pools that fill a device's memory. It keeps no
copies, and uses each world as the copy of the other: both are equal when a step begins, because
the last step was compared or the worlds were reset. A world is restored from the other one. The
changes of the eager world are its differences from the graph world before that one runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from paritybit.harness.lockstep.bits import any_set, bits
from paritybit.harness.lockstep.scale.comparison import (
    IN_FRAME,
    RESERVED,
    Difference,
    compare,
    digests,
)
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind, Role
from paritybit.reference.pool import KVLayout, KVPools
from paritybit.reference.state_pool import Section
from torch import Tensor

Arena = tuple[Role, Kind]
"""The key of a sub-pool of one model."""


@dataclass(frozen=True)
class Ran:
    """A forward of one world: its mode, its batch, and the mapping right before it."""

    mode: Mode
    batch: ForwardBatch | None
    mapping: Tensor

    def may_write(self, kind: Kind) -> Tensor | None:
        """Return the slots of one sub-pool that it may write, int64, or None if there are none."""
        if self.batch is None or self.mode.written is None:
            return None
        full = self.batch.out_cache_loc
        return full if kind is Kind.FULL else self.mapping[full].long()


@dataclass(frozen=True)
class OtherState:
    """A copy of a world's reserved slots and of its state other than KV."""

    reserved: Mapping[Arena, Tensor]
    sections: Mapping[Section, Tensor]

    @classmethod
    def of(cls, pools: KVPools) -> "OtherState":
        """Return a copy of the current content."""
        arenas = pools.arenas_of(pools.storage)
        sections = pools.sections_of(pools.storage)
        return cls(
            {(role, kind): arena[:, :, 0].clone() for role, kind, arena in arenas},
            {section: places.clone() for section, places in sections.items()},
        )

    def put_back(self, pools: KVPools) -> None:
        """Give a world's pools these bytes."""
        for role, kind, arena in pools.arenas_of(pools.storage):
            arena[:, :, 0] = self.reserved[role, kind]
        for section, places in pools.sections_of(pools.storage).items():
            places.copy_(self.sections[section])


@dataclass(frozen=True)
class Places:
    """Slots of each sub-pool, the same for both models, and places of other state, int64 each."""

    slots: Mapping[Kind, Tensor]
    beside: Mapping[Section, Tensor]


@dataclass(frozen=True)
class Rows:
    """A copy of a world's bytes at some places."""

    places: Places
    arenas: Mapping[Arena, Tensor]
    sections: Mapping[Section, Tensor]

    @classmethod
    def of(cls, pools: KVPools, places: Places) -> "Rows":
        """Return a copy of the current content."""
        return cls(
            places,
            {
                (role, kind): arena[:, :, places.slots[kind]]
                for role, kind, arena in pools.arenas_of(pools.storage)
            },
            {
                section: held[places.beside[section]]
                for section, held in pools.sections_of(pools.storage).items()
            },
        )

    def put_back(self, pools: KVPools) -> None:
        """Give a world's pools these bytes at these places."""
        for role, kind, arena in pools.arenas_of(pools.storage):
            arena[:, :, self.places.slots[kind]] = self.arenas[role, kind]
        for section, held in pools.sections_of(pools.storage).items():
            held[self.places.beside[section]] = self.sections[section]

    def differ(self, other: "Rows") -> Tensor:
        """Return whether any bit differs from other rows of the same places, bool []."""
        mine = (*self.arenas.values(), *self.sections.values())
        others = (*other.arenas.values(), *other.sections.values())
        pairs = zip(mine, others, strict=True)
        return torch.stack([any_set(bits(one) != bits(two)) for one, two in pairs]).any()


@dataclass(frozen=True)
class Compared:
    """The comparison of two worlds without copies after a step.

    - `eager`: the differences of the worlds after the eager forward only.
    - `graph`: the differences after both forwards.
    - `before`, `after`: other state and reserved slots, by world.
    - `lent`: the slots of each sub-pool that the eager world may write in this step.
    - `strayed`: bool [layers, 2, slots]; which of these the graph world changed by mistake.
    - `watched`: the graph world's rows that were requested before the step.
    """

    eager: Mapping[Arena, Difference]
    graph: Mapping[Arena, Difference]
    before: Mapping[str, OtherState]
    after: Mapping[str, OtherState]
    strayed: Mapping[Arena, Tensor]
    lent: Mapping[Arena, Tensor]
    element_bytes: int
    watched: Rows | None


NOT_KEPT = torch.empty(0)
"""A placeholder for the bytes of a world without a copy. Any access to its elements fails."""


class Copies:
    """Copies of both worlds' storages, before and after the forwards of a step."""

    def __init__(self, eager: KVPools, graph: KVPools) -> None:
        self.eager, self.graph = eager.storage, graph.storage
        self.result: Compared | None = None
        self.eager_before, self.eager_after, self.graph_before, self.graph_after = (
            torch.empty_like(self.eager) for _ in range(4)
        )
        self.compared = torch.ones_like(self.eager, dtype=torch.bool)
        for _, _, arena in eager.layout.arenas_of(self.compared):
            arena[:, :, 0] = False  # The reserved slot is never compared.
        for places in eager.layout.sections_of(self.compared).values():
            places[0] = False  # Nor is the reserved place of other state.

    def begin(self) -> None:
        """Copy both."""
        torch._foreach_copy_([self.eager_before, self.graph_before], [self.eager, self.graph])

    def after_eager(self, ran: Ran) -> None:
        """Copy the eager world's."""
        self.eager_after.copy_(self.eager)

    def after_graph(self, ran: Ran) -> None:
        """Copy the graph world's."""
        self.graph_after.copy_(self.graph)

    def restore_eager(self) -> None:
        """Copy it back."""
        self.eager.copy_(self.eager_before)

    def restore_graph(self) -> None:
        """Copy it back."""
        self.graph.copy_(self.graph_before)

    def playback(self) -> tuple[Tensor, Tensor]:
        """Return copies of both."""
        return self.eager.clone(), self.graph.clone()


class Twins:
    """Uses each world as the copy of the other, and compares them twice per step.

    A comparison reads every byte of both, because a stray write may be anywhere. On a GPU it takes
    a fraction of the time of a forward. Do not restore a world after the worlds have diverged.
    """

    def __init__(self, eager: KVPools, graph: KVPools) -> None:
        self.pools = {"eager": eager, "graph": graph}
        self.eager_before = self.eager_after = self.graph_before = self.graph_after = NOT_KEPT
        self.result: Compared | None = None
        self.layout: KVLayout = eager.layout
        device = eager.storage.device
        self.marks: dict[Arena, Tensor] = {}
        for role, kind, arena in self.layout.arenas_of(eager.storage):
            marks = torch.zeros(arena.shape[2], dtype=torch.uint8, device=device)
            marks[0] = RESERVED
            self.marks[role, kind] = marks
        self.before: dict[str, OtherState] = {}
        self.lent: dict[Arena, tuple[Tensor, Tensor]] = {}
        self.watched: Places | None = None
        counts = [marks.numel() for marks in self.marks.values()]
        planes = [
            arena.shape[0] * arena.shape[1] for _, _, arena in self.layout.arenas_of(eager.storage)
        ]
        per_slot = [torch.ones(count, dtype=torch.bool, device=device) for count in counts]
        for slots in per_slot:
            slots[0] = False
        beside = sum(places[1:].numel() for places in self._sections("eager").values())
        self.compared = torch.cat(
            [
                *(slots.repeat(times) for slots, times in zip(per_slot, planes, strict=True)),
                torch.ones(beside, dtype=torch.bool, device=device),
            ]
        )

    def begin(self) -> None:
        """Keep the reserved slots and other state of both worlds."""
        self.watched = None
        self.before = {name: OtherState.of(pools) for name, pools in self.pools.items()}

    def after_eager(self, ran: Ran) -> None:
        """Find the eager world's changes. The graph world still has the bytes before the step."""
        self.eager_ran, self.lent = ran, {}
        for arena, graph in self._arenas("graph").items():
            slots = ran.may_write(arena[1]) if arena[0] is ran.mode.written else None
            if slots is not None:
                self.lent[arena] = slots, graph[:, :, slots].clone()
        self.eager_changed = self._compare([ran])

    def after_graph(self, ran: Ran) -> None:
        """Find the differences of the worlds after both forwards."""
        strayed, lent = {}, {}
        for arena, (slots, before) in self.lent.items():
            now = self._arenas("graph")[arena][:, :, slots]
            own = ran.may_write(arena[1])
            foreign = ~torch.isin(slots, own) if own is not None else torch.ones_like(slots) > 0
            foreign &= slots != 0
            changed = (bits(now) != bits(before)).flatten(3).any(3)
            strayed[arena], lent[arena] = changed & foreign, slots
        differs = self._compare([self.eager_ran, ran])
        self.result = Compared(
            eager=self.eager_changed,
            graph=differs,
            before=self.before,
            after={name: OtherState.of(pools) for name, pools in self.pools.items()},
            strayed=strayed,
            lent=lent,
            element_bytes=self.pools["eager"].storage.element_size(),
            watched=Rows.of(self.pools["graph"], self.watched) if self.watched else None,
        )

    def restore_eager(self) -> None:
        """Copy the graph world's bytes to the eager world, then restore what is kept."""
        self._restore("eager", "graph")

    def restore_graph(self) -> None:
        """Copy the eager world's bytes to the graph world, then restore what is kept."""
        self._restore("graph", "eager")

    def playback(self) -> tuple[Tensor, Tensor]:
        """Return digests of each slot and a copy of other state, for both worlds."""
        eager, graph = (
            torch.cat(
                [
                    *(digests(slot_rows(arena)) for arena in self._arenas(name).values()),
                    *(
                        bits(places[1:]).flatten().to(torch.int64)
                        for places in self._sections(name).values()
                    ),
                ]
            )
            for name in self.pools
        )
        return eager, graph

    def _restore(self, world: str, other: str) -> None:
        self.pools[world].storage.copy_(self.pools[other].storage)
        self.before[world].put_back(self.pools[world])

    def _compare(self, forwards: list[Ran]) -> dict[Arena, Difference]:
        """Compare all KV of both worlds. The frame is the slots that these forwards may write."""
        eager, graph = self._arenas("eager"), self._arenas("graph")
        found = {}
        for arena, marks in self.marks.items():
            frames = [
                slots
                for ran in forwards
                if arena[0] is ran.mode.written and (slots := ran.may_write(arena[1])) is not None
            ]
            for slots in frames:
                marks[slots] = IN_FRAME
            marks[0] = RESERVED
            found[arena] = compare(eager[arena], graph[arena], marks)
            for slots in frames:
                marks[slots] = 0
            marks[0] = RESERVED
        return found

    def _arenas(self, world: str) -> dict[Arena, Tensor]:
        storage = self.pools[world].storage
        return {(role, kind): arena for role, kind, arena in self.layout.arenas_of(storage)}

    def _sections(self, world: str) -> dict[Section, Tensor]:
        return self.layout.sections_of(self.pools[world].storage)


def slot_rows(arena: Tensor) -> Tensor:
    """Return the bits of an arena, one row per slot of each plane."""
    return bits(arena).view(-1, arena.shape[3] * arena.shape[4])


def kept_of(eager: KVPools, graph: KVPools, *, large: bool) -> Copies | Twins:
    """Return `Twins` for pools too large to be copied, else `Copies`."""
    return Twins(eager, graph) if large else Copies(eager, graph)
