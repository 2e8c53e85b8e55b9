"""The states of recurrent layers: a group of slots in which each request has one slot.

A state depends on all tokens up to some position, and each forward replaces it. It is reported as
the slot of that position alone, in a group whose window is two positions: a row reads the state
after its last cached position, and writes that after its last computed one, usually into the same
slot. For a cached prefix, the engine first copies the state from the slot of the cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sglang.rows import PREFILLS, Rows, mode_of
from paritybit.watch.facts import Forward, Group, Layer
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import Weakly, weakened

NAME = "state"

WINDOW = 2
"""The positions that a query reads: its own, and the one before, whose state has all others."""

NONE = -1
"""Stands for the source slot of a state that must not be copied."""

UNKNOWN = ("replayssm_d", "replayssm_k", "replayssm_g")
"""Other tensors of a state, which are not supported."""


@dataclass
class States:
    """The states of the requests in a table of requests.

    `due` are the copies that the current forward must make first, and `seen` those that it made,
    each by target slot. A row with nothing cached must start from the initial state: its source is
    NONE.
    """

    table: Any = Weakly()
    due: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Any) -> "States | None":
        """Return the states of a table, or None if it has none. Raises NotRecognisedError."""
        pool = maybe(table, "mamba_pool")
        if pool is None:
            return None
        if maybe(table, "enable_mamba_extra_buffer"):
            raise NotRecognisedError("states that are tracked in slots of their own")
        if maybe(table, "mamba_ckpt_pool") is not None or "Unified" in type(pool).__name__:
            raise NotRecognisedError("states that are kept in another form")
        held = pool.mamba_cache
        unknown = any(maybe(held, name) is not None for name in UNKNOWN)
        if unknown or hasattr(held, "intermediate_conv_window"):
            raise NotRecognisedError("states of drafts")
        return cls(table)

    @property
    def group(self) -> Group:
        """The KV group of the states. Padding uses slot 0."""
        held = self.table.mamba_pool.mamba_cache
        parts = [*held.conv, held.temporal]
        layers = (
            Layer(f"recurrent layer {at}", tuple(part[at] for part in parts if part.numel()))
            for at in range(len(parts[0]))
        )
        return weakened(Group(NAME, tuple(layers), WINDOW))

    def parts(self) -> Iterator[tuple[Any, str]]:
        """Yield the objects that allocate and copy slots, with the name of the group."""
        for part in (self.table.mamba_pool, maybe(self.table, "mamba_allocator")):
            if part is not None:
                yield part, NAME

    @property
    def free(self) -> Tensor:
        """The free slots."""
        held = [part.free_slots for part, _ in self.parts() if hasattr(part, "free_slots")]
        slots: Tensor = held[-1]
        return slots

    def written(self, batch: Any) -> dict[str, Tensor]:
        """Return the slots that a batch writes."""
        return {NAME: self.table.req_index_to_mamba_index_mapping[batch.req_pool_indices]}

    def with_states(self, batch: Any, forward: Forward, found: Rows) -> tuple[Forward, Rows]:
        """Add the slots of states to the facts and the rows of a forward."""
        mine, listed = self.written(batch)[NAME].tolist(), dict[int, int]()
        ends = (maybe(batch, f"mamba_cow_{end}_indices") for end in ("dst", "src"))
        pairs = [one.tolist() for one in ends if isinstance(one, Tensor)]
        if len(pairs) == 2 and mode_of(batch) in PREFILLS:  # From a cached prefix.
            listed = dict(zip(*pairs, strict=True))
        self.due, self.seen = {}, {}
        rows = []
        for at, row in found.pairs:
            slots = torch.full((row.cached + row.computed,), -1)
            slots[-1] = mine[at]
            if row.cached:
                slots[row.cached - 1] = listed.get(mine[at], mine[at])
            if mine[at] in listed:
                self.due[mine[at]] = listed[mine[at]] if row.cached else NONE
            rows.append(replace(row, slots={**row.slots, NAME: slots}))
        return replace(forward, rows=tuple(rows)), Rows(rows, found.batch_rows)

    def copied(self, source: Tensor, target: Tensor) -> None:
        """Record a copy that the current forward made."""
        self.seen.update(zip(target.tolist(), source.tolist(), strict=True))

    def judge(self, watcher: Watcher) -> None:
        """Judge, at the end of a forward, the copies that it made."""
        if self.due:
            made = torch.tensor([self.seen.get(target, NONE) for target in self.due])
            watcher.judge_inputs("states", [expected("copied states", made, [*self.due.values()])])
        self.due = {}
