"""Where two tensors of bits first differ, and how such a place is described."""

from typing import Any

from torch import Tensor

from harness.lockstep.bits import bits, first_index, form, hex_bits
from reference.model import Output
from reference.pool import KVLayout


def first_kv_difference(
    layout: KVLayout, left: Tensor, right: Tensor, mask: Tensor | None = None
) -> dict[str, Any]:
    """Say where two storages of a layout first differ, in execution order, slot 0 apart.

    The target before the draft, layers in model order, K before V, slots ascending. `mask`,
    bool in the storage's layout, limits where to look. Raises ValueError if they do not differ.
    """
    flat = (left, right) if mask is None else (left, right, mask)
    views = [
        {(role, kind): arena for role, kind, arena in layout.arenas_of(storage)} for storage in flat
    ]
    for role, kind, layer, place in layout.layers():
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
                "differing_slots": sorted({int(index) for index in different.nonzero()[:, 1]}),
                "eager_bits": hex_bits(pair[0][plane, slot, head, element]),
                "graph_bits": hex_bits(pair[1][plane, slot, head, element]),
            }
    raise ValueError("the two storages do not differ")


def first_output_difference(left: Output, right: Output) -> dict[str, Any]:
    """Say where two outputs, [rows, columns] each, first differ: in bits, or in form.

    Raises ValueError if they do not differ.
    """
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


def describe_slot(where: dict[str, Any]) -> str:
    """Return a place in a pool, in words."""
    return (
        f"{where['model']} layer {where['layer']} ({where['kind']}), {where['tensor']},"
        f" slot {where['slot']} of {where['owner']}, head {where['head']},"
        f" element {where['element']}:"
    )
