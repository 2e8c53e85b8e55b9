"""Who wrote each element of the static buffers, and each slot of the pools, last.

The writes are observed as they happen, without knowledge of any bug.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.harness.explain.facts import How, Writer
from paritybit.harness.explain.first_difference import STORES, store_of
from paritybit.reference.ops import OpCall
from paritybit.reference.pool import KVPools
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


class StaticWriters(UncompiledMode):
    """Follows every write to some static buffers while it is entered."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        super().__init__()
        self._written: dict[int, Tensor] = {}
        for buffer in buffers:
            storage = buffer.untyped_storage()
            elements = storage.nbytes() // buffer.element_size()
            self._written.setdefault(storage._cdata, torch.zeros(elements, dtype=torch.int64))
        self._writes = [StaticWrite(CAPTURE, "capture")]

    def during(self, forward_id: ForwardId, *, equalizing: bool = False) -> "StaticWriters":
        """Credit writes from now on to `forward_id`, or to the harness if it equalizes padding."""
        self._first = len(self._writes)
        hows: tuple[How, How] = ("equalized", "equalized") if equalizing else ("copied", "reset")
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


SlotWriters = dict[tuple[str | None, str | None, int], Writer]
"""What wrote each slot last, by model, kind and slot number."""


def slot_writers(pools: KVPools, forward_id: ForwardId, calls: Iterable[OpCall]) -> SlotWriters:
    """Return the writers of the slots that a forward stored in."""
    found: SlotWriters = {}
    for store in (store_of(call, pools) for call in calls if call.name in STORES):
        cache, owners = store.cache, forward_id.rows
        if cache is None:
            continue
        for row, place in enumerate(store.rows):
            request = owners[row] if row < len(owners) else None
            slot = cache.model, cache.kind, place // cache.slot_rows
            found[slot] = Writer(forward_id.step, forward_id.runner, row, request)
    return found
