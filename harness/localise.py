"""Where two worlds first differ: layer, tensor, slot, head, element, both bit patterns, owner."""

from typing import Any

import torch
from torch import Tensor

from harness.bits import bits, hex_bits
from harness.world import World
from reference.config import Kind
from reference.pool import HybridKVPool


def first_index(mask: Tensor) -> tuple[int, ...]:
    """Return the index of the first true element of a mask that has one."""
    return tuple(torch.nonzero(mask)[0].tolist())


def first_kv_difference(
    pool: HybridKVPool, left: Tensor, right: Tensor, mask: Tensor | None = None
) -> dict[str, Any]:
    """Say where two storages of `pool`'s layout first differ, in execution order, slot 0 apart.

    Layers in model order, K before V, slots ascending. `mask`, bool in the storage's
    layout, limits where to look.
    """
    views = [pool.arenas_of(each) for each in (left, right)]
    masks = pool.arenas_of(mask) if mask is not None else None
    for layer, kind in enumerate(pool.config.layers):
        place = pool.config.layers_of(kind).index(layer)
        pair = [view[kind][place] for view in views]
        different = bits(pair[0]) != bits(pair[1])
        different[:, 0] = False
        if masks is not None:
            different &= masks[kind][place]
        if different.any():
            plane, slot, head, element = first_index(different)
            return {
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


def first_row_difference(left: Tensor, right: Tensor) -> dict[str, Any]:
    """Say where two [rows, vocab] tensors first differ."""
    row, column = first_index(bits(left) != bits(right))
    return {
        "tensor": "logits",
        "row": row,
        "element": column,
        "eager_bits": hex_bits(left[row, column]),
        "graph_bits": hex_bits(right[row, column]),
    }


def owner(world: World, kind: str, slot: int) -> str:
    """Say in words whose slot it is."""
    for request in world.running:
        full, swa = world.owned(request)
        if slot in (full if kind == Kind.FULL else swa):
            return f"request {request.serial}"
    return "nobody"
