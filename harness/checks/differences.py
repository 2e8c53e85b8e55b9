"""Where two worlds first differ: layer, tensor, slot, head, element, both bit patterns, owner."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from harness.lockstep.bits import bits, form, hex_bits
from harness.lockstep.scheduler import Scheduler
from reference.batch import Span
from reference.config import Kind, Role
from reference.model import Output
from reference.pool import KVPools


def first_index(mask: Tensor) -> tuple[int, ...]:
    """Return the index of the first true element of a mask that has one."""
    return tuple(torch.nonzero(mask)[0].tolist())


def first_kv_difference(
    pools: KVPools, left: Tensor, right: Tensor, mask: Tensor | None = None
) -> dict[str, Any]:
    """Say where two storages of `pools`' layout first differ, in execution order, slot 0 apart.

    The target before the draft, layers in model order, K before V, slots ascending. `mask`,
    bool in the storage's layout, limits where to look.
    """
    flat = (left, right) if mask is None else (left, right, mask)
    views = [{(role, kind): arena for role, kind, arena in pools.arenas_of(each)} for each in flat]
    for role, kind, layer, place in _layers(pools):
        pair = [view[role, kind][place] for view in views]
        different = bits(pair[0]) != bits(pair[1])
        different[:, 0] = False
        if mask is not None:
            different &= pair[2]
        if different.any():
            plane, slot, head, element = first_index(different)
            return {
                "model": str(role),
                "layer": layer,
                "kind": str(kind),
                "tensor": "KV"[plane],
                "slot": slot,
                "head": head,
                "element": element,
                "differing_slots": sorted({int(i) for i in different.nonzero()[:, 1]}),
                "eager_bits": hex_bits(pair[0][plane, slot, head, element]),
                "graph_bits": hex_bits(pair[1][plane, slot, head, element]),
            }
    raise ValueError("the two storages do not differ")


def _layers(pools: KVPools) -> Iterator[tuple[Role, Kind, int, int]]:
    """Yield the model, kind, index and place among its kind of every layer that has KV."""
    for role, pool in pools.pools.items():
        for layer, kind in enumerate(pool.config.layers):
            yield role, kind, layer, pool.config.layers_of(kind).index(layer)


def first_output_difference(left: Output, right: Output) -> dict[str, Any]:
    """Say where two outputs, [rows, columns] each, first differ: in bits, or in form."""
    if form(left) != form(right):
        return {"tensor": "output", "row": 0, "eager": str(form(left)), "graph": str(form(right))}
    for name in left:
        different = bits(left[name]) != bits(right[name])
        if different.any():
            row, column = first_index(different)
            return {
                "tensor": name,
                "row": row,
                "element": column,
                "eager_bits": hex_bits(left[name][row, column]),
                "graph_bits": hex_bits(right[name][row, column]),
            }
    raise ValueError("the two outputs do not differ")


def owner(world: Scheduler, spans: Iterable[Span], kind: str, slot: int) -> str:
    """Say in words whose slot it is; `spans` are what is being written."""
    for span in spans:
        if slot in (span.full_slots if kind == Kind.FULL else span.swa_slots):
            return f"request {world.request_of(span.row).serial}"
    for request in world.running:
        full, swa = world.owned(request)
        if slot in (full if kind == Kind.FULL else swa):
            return f"request {request.serial}"
    return "nobody"
