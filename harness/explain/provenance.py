"""Who wrote each element of the static buffers, and each slot of the pools, last.

The writes are observed as they happen, without knowledge of any bug.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from paritybit.harness.explain.facts import How
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import Role
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


class Cache(NamedTuple):
    """A cache of a forward: KV of one layer, or with no layer state beside KV.

    A slot has `slot_rows` rows.
    """

    model: str
    kind: str
    layer: int | None = None
    slot_rows: int = 1


STATES: Final = {
    Section.RECURRENT: Cache(Role.TARGET, "recurrent state", slot_rows=STATE_ROWS),
    Section.DRAFT_TABLE: Cache(Role.DRAFT, "table"),
}
"""The caches beside KV."""

STORES = frozenset({"store_kv", "store_rows"})


def caches(pools: KVPools, storage: Tensor) -> dict[Cache, Tensor]:
    """Return the rows of each cache in a storage of some pools."""
    found: dict[Cache, Tensor] = {}
    for role, kind, arena in pools.arenas_of(storage):
        for number, layer in enumerate(pools[role].config.layers_of(kind)):
            found[Cache(str(role), str(kind), layer)] = arena[number].transpose(0, 1)
    for section, places in pools.sections_of(storage).items():
        found[STATES[section]] = places.flatten(0, 1)
    return found


def cache_of(tensor: Tensor, pools: KVPools) -> tuple[Cache, bool]:
    """Return which cache an argument of an op is, and whether it is the pools' own.

    A copy counts as the first cache of its shape.
    """
    rows = tensor.transpose(0, 1) if tensor.dim() > 2 else tensor
    found = caches(pools, pools.storage)
    for cache, own in found.items():
        if own.data_ptr() == tensor.data_ptr():
            return cache, True
    return next(cache for cache, own in found.items() if own.shape[1:] == rows.shape[1:]), False


@dataclass(frozen=True)
class Store:
    """One store: the row of the cache that each row of the op names, and its values.

    `own` says whether the pools' own cache was written, and not a copy.
    """

    cache: Cache
    own: bool
    rows: list[int]
    values: Tensor

    @property
    def slots(self) -> list[int]:
        """The slot that each row of the op names."""
        return [row // self.cache.slot_rows for row in self.rows]


def store_of(call: OpCall, pools: KVPools) -> Store:
    """Return what a store did, with its locations as the store reads them."""
    if call.name == "store_kv":
        target, loc, dtype, key, value = call.inputs
        rows, values = loc.view(dtype)[: len(key)], torch.stack([key, value], 1)
    else:
        target, rows, values = call.inputs
    return Store(*cache_of(target, pools), rows.tolist(), values)


@dataclass(frozen=True)
class SlotWrite:
    """What wrote a slot last: a row of a forward, live for a request or padding."""

    forward_id: ForwardId
    row: int
    request: int | None


class SlotLedger:
    """The last writer of each slot of the graph run's pools."""

    def __init__(self, pools: KVPools) -> None:
        self.pools = pools
        self._writes: dict[tuple[str, str, int], SlotWrite] = {}

    def follow(self, forward_id: ForwardId, calls: Iterable[OpCall]) -> None:
        """Follow the stores of a forward."""
        for store in (store_of(call, self.pools) for call in calls if call.name in STORES):
            cache = store.cache
            # Drafting stores one row of the table per request, everything else one row per token.
            in_table = cache == STATES[Section.DRAFT_TABLE]
            owners = forward_id.requests if in_table else forward_id.rows
            for row, slot in enumerate(store.slots if store.own else ()):
                request = owners[row] if row < len(owners) else None
                self._writes[cache.model, cache.kind, slot] = SlotWrite(forward_id, row, request)

    def of(self, model: str, kind: str, slot: int) -> SlotWrite | None:
        """Return what wrote a slot last, or None."""
        return self._writes.get((model, kind, slot))


def row_requests(batch: ForwardBatch, serials: Sequence[int]) -> tuple[int, ...]:
    """Return the request of each live row of a forward's ops, in row order.

    `serials` are those of the batch's requests. A draft has one row per branch of each request.
    """
    return tuple(serials[request] for request in batch.token_requests.tolist())
