"""Who wrote each element of the static buffers, and each slot of the pools, last.

The writes are observed as they happen, without knowledge of any bug.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.harness.explain.facts import How
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import Kind, Role
from paritybit.reference.ops import OpCall
from paritybit.reference.pool import KVPools
from paritybit.reference.state_pool import STATE_ROWS, Section
from paritybit.subjects.graphs.dispatch import UncompiledMode
from torch import Tensor

RESETS = frozenset({"aten::zero_", "aten::fill_", "aten::_foreach_zero_"})


@dataclass(frozen=True)
class ForwardId:
    """One forward: its number in the play, its step in the schedule, and who ran it.

    `requests` are the requests of its batch. `rows` has the request of each live row of its ops.
    """

    forward: int
    step: int
    runner: str | None
    requests: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


CAPTURE = ForwardId(-1, -1, None)


@dataclass(frozen=True)
class StaticWrite:
    """What wrote an element last, and how."""

    forward_id: ForwardId
    how: How


class StaticLedger(UncompiledMode):
    """Follows every write to some static buffers while it is entered."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        super().__init__()
        self._written: dict[int, Tensor] = {}
        for buffer in buffers:
            storage = buffer.untyped_storage()
            elements = storage.nbytes() // buffer.element_size()
            self._written.setdefault(storage._cdata, torch.zeros(elements, dtype=torch.int64))
        self._writes = [StaticWrite(CAPTURE, "capture")]

    def during(self, forward_id: ForwardId, *, equalizing: bool = False) -> "StaticLedger":
        """Credit writes from now on to `forward_id`, or to the harness if it equalizes padding."""
        self._first = len(self._writes)
        hows: tuple[How, How] = ("copied", "reset")
        if equalizing:
            hows = "equalized", "equalized"
        self._writes += [StaticWrite(forward_id, how) for how in hows]
        return self

    def of(self, buffer: Tensor) -> list[StaticWrite]:
        """Return what wrote each element of a contiguous buffer last.

        A buffer that was replaced since the capture is credited to the last forward.
        """
        written = self._written.get(buffer.untyped_storage()._cdata)
        if written is None:
            return [self._writes[-2]] * buffer.numel()
        first = buffer.storage_offset()
        return [self._writes[i] for i in written[first : first + buffer.numel()].tolist()]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            number = self._first + (func._schema.name in RESETS)
            for argument, given in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in [given] if isinstance(given, Tensor) else given:
                        self._mark(tensor, number)
        return value

    def _mark(self, tensor: Tensor, number: int) -> None:
        written = self._written.get(tensor.untyped_storage()._cdata)
        if written is not None:
            place = tensor.size(), tensor.stride(), tensor.storage_offset()
            torch.as_strided(written, *place).fill_(number)


@dataclass(frozen=True)
class Store:
    """One `store_kv` call: its cache, and the slot that each of its rows was written to.

    `elsewhere` means that it did not write the pool's own cache.
    """

    role: Role
    layer: int
    kind: Kind
    slots: list[int]
    key: Tensor
    value: Tensor
    elsewhere: bool = False


def layers_by_address(pools: KVPools) -> dict[int, tuple[Role, int, Kind]]:
    """Return the model, layer and kind of every layer's cache, by the cache's address."""
    return {
        pool.cache(layer).data_ptr(): (role, layer, kind)
        for role, pool in pools.pools.items()
        for layer, kind in enumerate(pool.config.layers)
    }


def layer_of(cache: Tensor, pools: KVPools) -> tuple[Role, int, Kind]:
    """Return the model, layer and kind of a cache. A copy counts as the first of its shape."""
    layers = layers_by_address(pools)
    alike = (
        found for found in layers.values() if pools[found[0]].cache(found[1]).shape == cache.shape
    )
    return layers.get(cache.data_ptr()) or next(alike, next(iter(layers.values())))


def store_of(call: OpCall, pools: KVPools) -> Store:
    """Return what a `store_kv` call did, with its locations as the store reads them."""
    cache, loc, dtype, key, value = call.inputs
    slots: list[int] = loc.view(dtype)[: key.shape[0]].tolist()
    role, layer, kind = layer_of(cache, pools)
    elsewhere = cache.data_ptr() != pools[role].cache(layer).data_ptr()
    return Store(role, layer, kind, slots, key, value, elsewhere=elsewhere)


PLACE_ROWS = {Section.RECURRENT: STATE_ROWS, Section.DRAFT_TABLE: 1}
"""The number of rows of an op's table per place, for each section of state beside KV."""


@dataclass(frozen=True)
class RowStore:
    """One `store_rows` call: its section, and the row that each of its values was written to.

    `elsewhere` says that the written table is not the pool's own.
    """

    section: Section
    rows: list[int]
    values: Tensor
    elsewhere: bool = False

    @property
    def places(self) -> list[int]:
        """The place that each value was written to."""
        return [row // PLACE_ROWS[self.section] for row in self.rows]


def row_store_of(call: OpCall, pools: KVPools) -> RowStore:
    """Return what a `store_rows` call did. A table that is not the pool's is found by its width."""
    table, rows, values = call.inputs
    views = pools.state.sections
    there = [section for section in views if views[section].data_ptr() == table.data_ptr()]
    alike = [section for section in views if views[section].shape[-1] == table.shape[-1]]
    return RowStore((there or alike)[0], rows.tolist(), values, elsewhere=not there)


@dataclass(frozen=True)
class SlotWrite:
    """What wrote a slot last: a row of a forward, live for a request or padding."""

    forward_id: ForwardId
    row: int
    request: int | None


class SlotLedger:
    """The last writer of each slot of the graph world's pools, and of each place beside KV."""

    def __init__(self, pools: KVPools) -> None:
        self.pools = pools
        self._writes: dict[tuple[Role, Kind, int], SlotWrite] = {}
        self._places: dict[tuple[Section, int], SlotWrite] = {}

    def follow(self, forward_id: ForwardId, calls: Iterable[OpCall]) -> None:
        """Follow the stores of a forward."""
        for call in calls:
            if call.name == "store_kv":
                store = store_of(call, self.pools)
                for row, slot in enumerate(() if store.elsewhere else store.slots):
                    request = forward_id.rows[row] if row < len(forward_id.rows) else None
                    self._writes[store.role, store.kind, slot] = SlotWrite(forward_id, row, request)
            elif call.name == "store_rows":
                stored = row_store_of(call, self.pools)
                # Drafting stores one row per request, other forwards one row per token.
                in_table = stored.section is Section.DRAFT_TABLE
                owners = forward_id.requests if in_table else forward_id.rows
                for row, place in enumerate(stored.places):
                    request = owners[row] if row < len(owners) else None
                    self._places[stored.section, place] = SlotWrite(forward_id, row, request)

    def of(self, role: Role, kind: Kind, slot: int) -> SlotWrite | None:
        """Return what wrote a slot last, or None."""
        return self._writes.get((role, kind, slot))

    def of_place(self, section: Section, place: int) -> SlotWrite | None:
        """Return what wrote a place beside KV last, or None."""
        return self._places.get((section, place))


def row_requests(batch: ForwardBatch, serials: Sequence[int]) -> tuple[int, ...]:
    """Return the request of each live row of a forward's ops, in row order.

    `serials` are those of the batch's requests. A draft has one row per branch of each request.
    """
    return tuple(serials[request] for request in batch.token_requests.tolist())
