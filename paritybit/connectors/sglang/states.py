"""The recurrent states of sglang, such as those of Mamba2, in slots of their own.

A state depends on all tokens up to some position, and each forward replaces it. It is reported as
the slot of that position alone, in a group whose window is two positions: a row reads the state
after its last cached position, and writes that after its last computed one, usually into the same
slot. For a cached prefix, the engine first copies the state from the slot of the cache. In batches
that keep states for the cache, a row writes a second slot.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sglang.pools import PREFILLS
from paritybit.connectors.sglang.rows import mode_of, slots_written
from paritybit.watch.facts import Forward, Group, Layer, Row, RowValues
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import Weakly, weakened

NAME = "state"
"""The name of the group of states."""

WINDOW = 2
"""The positions that a query reads: its own, and the one before, whose state has all others."""

NONE, CLEARED, OTHER = -1, -2, -3
"""Stand for the source of a state that no copy may make, that is initial, or that a copy or a
clear left with other values than its source."""

MOST, MOST_WAITING, ENTRIES, ALIKE = 20_000, 100, 32, 1e-3
"""The numbers of states that are remembered, and whose tokens are not known yet, of entries of each
of their tensors, and the largest difference between states of the same tokens, relative to the
largest of these entries."""

UNKNOWN = ("replayssm_d", "replayssm_k", "replayssm_g")
"""Other tensors of a state, which are not supported."""


@dataclass
class SglangStates:
    """The states of the requests in a table of requests.

    `due` are the sources of the states with which the rows of the current forward begin, if they
    have another one or none, and `seen` those of the copies that it made, each by target slot.
    `kept` are the slots of states at the end of rows, each with another that gets the same state.
    `read` is the number of states that it reads. `made` are those that it computes, each by its
    row, its slot and the number of its tokens. With `compared`, states of the same tokens must be
    alike: `known` has entries of each by its tokens, and `waiting` of those with unknown ones.
    `weights` counts updates of the weights, after which states are others.
    """

    table: Any = Weakly()
    due: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    kept: list[tuple[int, int]] = field(default_factory=list)
    read: int = 0
    made: list[tuple[Row, int, int]] = field(default_factory=list)
    compared: bool = False
    weights: int = 0
    known: dict[int, Tensor] = field(default_factory=dict)
    waiting: list[tuple[str, int, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, table: Any) -> "SglangStates | None":
        """Return the states of a table, or None if it has none. Raises NotRecognisedError."""
        pool = maybe(table, "mamba_pool")
        if pool is None:
            return None
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
        slots = self.table.req_index_to_mamba_index_mapping[batch.req_pool_indices].long()
        mask = maybe(batch, "mamba_track_mask")
        if mask is not None:
            slots = torch.cat((slots, torch.where(mask, batch.mamba_track_indices, NONE)))
        return {NAME: slots}

    def tracked(self, batch: Any, rows: Sequence[Row]) -> dict[int, tuple[int, int]]:
        """Return the slots in which a batch keeps states for the prefix cache.

        Each comes by its row, with the number of tokens that the state sums up.
        """
        if (mask := maybe(batch, "mamba_track_mask")) is None:
            return {}
        lengths = [row.cached + row.computed for row in rows]
        if mode_of(batch) in PREFILLS:
            if not hasattr(batch, "mamba_track_aligned_lens"):
                raise NotRecognisedError("states that are tracked in slots of their own")
            aligned = batch.mamba_track_aligned_lens().tolist()
            lengths = [row.cached + more for row, more in zip(rows, aligned, strict=False)]
        slots = batch.mamba_track_indices.tolist()
        return {at: (slots[at], lengths[at]) for at, one in enumerate(mask.tolist()) if one}

    def with_states(self, batch: Any, forward: Forward, found: Any) -> tuple[Forward, Any]:
        """Add the slots of states to the facts and the rows of a forward."""
        count, prefills = len(batch.req_pool_indices), forward.kind in PREFILLS
        held, listed = self.written(batch)[NAME], dict[int, int]()
        mine, tracked = held[:count].tolist(), self.tracked(batch, found.rows)
        ends = (maybe(batch, f"mamba_cow_{end}_indices") for end in ("dst", "src"))
        pairs = [one.tolist() for one in ends if isinstance(one, Tensor)]
        if len(pairs) == 2 and prefills:  # From a cached prefix.
            listed = dict(zip(*pairs, strict=True))
        clears = prefills and hasattr(batch, "mamba_clear_indices")
        self.due, self.seen, self.kept, self.made = {}, {}, [], []
        self.read = sum(row.cached > 0 for row in found.rows)
        rows = []
        for at, row in found.pairs:
            slot, end = mine[at], row.cached + row.computed
            slots = torch.full((end,), -1)
            target, length = tracked.get(at, (-1, end))
            if 0 < length < end:
                slots[length - 1] = target
            elif length == end and target >= 0:
                self.kept.append((slot, target))
            slots[-1] = slot
            self.made.append((row, slot, end))
            if target >= 0 and length > 0:
                self.made.append((row, target, length))
            if row.cached:
                slots[row.cached - 1] = listed.get(slot, slot)
            if slot in listed or (clears and not row.cached):
                empty = CLEARED if clears else NONE
                self.due[slot] = listed.get(slot, NONE) if row.cached else empty
            rows.append(replace(row, slots={**row.slots, NAME: slots}))
        owned = forward.owned
        if self.kept:
            owned = {name: slots_written(rows, name) for name in rows[0].slots} | {NAME: held}
        facts = replace(forward, rows=tuple(rows), owned=owned)
        return facts, replace(found, rows=rows)

    def copied(self, source: Tensor, target: Tensor) -> None:
        """Record a copy that the current forward made."""
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        self.began(target, [one for one, _ in pairs], lambda one: one[:, source.long()])

    def cleared(self, target: Tensor) -> None:
        """Record that the current forward cleared states."""
        self.began(target, [CLEARED] * len(target), torch.zeros_like)

    def began(
        self, target: Tensor, sources: Sequence[int], right: Callable[[Tensor], Tensor]
    ) -> None:
        """Record where states come from, unless a tensor has other values than are `right`."""
        held = self.table.mamba_pool.mamba_cache
        same = torch.ones(len(target), dtype=torch.bool)
        for part in (*held.conv, held.temporal):
            if part.numel():
                now = part[:, target.long()]
                wanted = right(now) if right is torch.zeros_like else right(part)
                same &= (now == wanted).transpose(0, 1).flatten(1).all(1).cpu()
        for slot, source, fits in zip(target.tolist(), sources, same.tolist(), strict=True):
            self.seen[slot] = source if fits else OTHER

    def judge(self, watcher: Watcher) -> None:
        """Judge, at the end of a forward, with which states its rows began."""
        if self.due:
            made = torch.tensor([self.seen.get(target, NONE) for target in self.due])
            watcher.judge_inputs("states", [expected("copied states", made, [*self.due.values()])])
        watcher.journal.count(state_reads=self.read)
        self.due, self.read = {}, 0

    def end(self, watcher: Watcher) -> None:
        """Report, after a forward, the states that it kept twice, and compare those it computed."""
        if self.kept:
            source, target = torch.tensor(self.kept).T
            watcher.copied(NAME, source, target)
        if self.compared and self.made and (values := self.alike()):
            watcher.judge_rows("states", [values])
        self.kept, self.made = [], []

    def alike(self) -> RowValues | None:
        """Return entries of the states of known tokens, and what they were for the same tokens.

        Tokens may be known only when their request is computed again.
        """
        if len(self.known) > MOST:
            self.known.clear()
        rows = {row.request: row for row, *_ in self.made}
        waiting = [
            (row.request, end, one)
            for (row, _, end), one in zip(self.made, self.entries(), strict=True)
        ]
        names, now, right = list[str](), list[Tensor](), list[Tensor]()
        before, self.waiting = self.waiting, []
        for request, end, one in (*before, *waiting):
            row = rows.get(request)
            if row is None or None in row.tokens[:end]:
                self.waiting.append((request, end, one))
            elif len(row.tokens) >= end:
                key = hash((self.weights, row.space, *row.tokens[:end]))
                names.append(request)
                now.append(one)
                right.append(self.known.setdefault(key, one))
        del self.waiting[:-MOST_WAITING]
        if not names:
            return None
        return RowValues("states of its tokens", names, torch.stack(now), torch.stack(right), ALIKE)

    def entries(self) -> Tensor:
        """Return some entries of the states that the forward computed, [states, n]."""
        held = self.table.mamba_pool.mamba_cache
        slots = torch.tensor([slot for _, slot, _ in self.made])
        parts = [one[:, slots].transpose(0, 1).flatten(1) for one in (*held.conv, held.temporal)]
        return torch.cat([one[:, :: max(1, one.shape[1] // ENTRIES)] for one in parts], 1).cpu()
