"""Finds and describes the first difference of two storages or outputs."""

from typing import Any

from paritybit.harness.lockstep.bits import first_index, form, hex_bits, unequal
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.model import Output
from torch import Tensor


def first_difference(
    observation: Observation, different: Tensor, left: Tensor, right: Tensor
) -> dict[str, Any]:
    """Return the place where two storages first differ, with its owner.

    The order is: target before draft, layers in model order, K before V, slots ascending, then
    recurrent states. `different` is a mask in the storages' layout, with at least one element.
    """
    layout, graph = observation.layout, observation.graph
    masks, lefts, rights = (
        {(role, kind): arena for role, kind, arena in layout.arenas_of(flat)}
        for flat in (different, left, right)
    )
    for role, kind, layer, number in layout.layers():
        mask = masks[role, kind][number]
        if mask.any():
            index = plane, slot, head, element = first_index(mask)
            return {
                "model": str(role),
                "layer": layer,
                "kind": str(kind),
                "tensor": "KV"[plane],
                "slot": slot,
                "head": head,
                "element": element,
                "differing_slots": sorted(set(mask.nonzero()[:, 1].tolist())),
                "eager_bits": hex_bits(lefts[role, kind][number][index]),
                "graph_bits": hex_bits(rights[role, kind][number][index]),
                "owner": graph.owner_of(kind, slot),
            }
    index = slot, row, element = first_index(layout.states_of(different))
    return {
        "state_slot": slot,
        "row": row,
        "element": element,
        "eager_bits": hex_bits(layout.states_of(left)[index]),
        "graph_bits": hex_bits(layout.states_of(right)[index]),
        "owner": graph.owner_of_state(slot),
    }


def first_output_difference(left: Output, right: Output) -> dict[str, Any] | None:
    """Return where two outputs, [rows, columns] each, first differ in bits, shape or dtype.

    `eager_bits` are those of `left`, which is right.
    """
    if form(left) != form(right):
        return {"tensor": "output", "row": 0, "eager": str(form(left)), "graph": str(form(right))}
    for name in left:
        different = unequal(left[name], right[name])
        if different.any():
            row, column = first_index(different)
            return {
                "tensor": name,
                "row": row,
                "element": column,
                "eager_bits": hex_bits(left[name][row, column]),
                "graph_bits": hex_bits(right[name][row, column]),
            }
    return None


def describe_slot(where: dict[str, Any]) -> str:
    """Describe a place that `first_difference` found."""
    if "state_slot" in where:
        token = f", token {where['row'] - 1} to verify" if where["row"] else ""
        slot, owner = where["state_slot"], where["owner"]
        return f"recurrent state slot {slot} of {owner}{token}, element {where['element']}:"
    return (
        f"{where['model']} layer {where['layer']} ({where['kind']}), {where['tensor']},"
        f" slot {where['slot']} of {where['owner']}, head {where['head']},"
        f" element {where['element']}:"
    )
