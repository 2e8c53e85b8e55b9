"""Finds and describes the first difference of two storages or outputs."""

from typing import Any

from paritybit.harness.lockstep.bits import bits, first_index, form, hex_bits
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.model import Output
from paritybit.reference.state_pool import Section
from torch import Tensor

PLACE_NAMES = {Section.RECURRENT: "recurrent state slot", Section.DRAFT_TABLE: "draft table row"}
"""The name of a place in each section of other state."""


def first_difference(
    observation: Observation, different: Tensor, left: Tensor, right: Tensor
) -> dict[str, Any]:
    """Return the place where two storages first differ, with its owner.

    The order is: target before draft, layers in model order, K before V, slots ascending, then
    other state. `different` is a mask in the storages' layout, with at least one element.
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
    sections = layout.sections_of(different).items()
    section, mask = next(pair for pair in sections if pair[1].any())
    index = place, row, element = first_index(mask)
    return {
        "section": str(section),
        "place": place,
        "row": row,
        "element": element,
        "differing_places": sorted(set(mask.nonzero()[:, 0].tolist())),
        "eager_bits": hex_bits(layout.section_of(left, section)[index]),
        "graph_bits": hex_bits(layout.section_of(right, section)[index]),
        "owner": graph.owner_of_place(section, place),
    }


def first_output_difference(left: Output, right: Output) -> dict[str, Any] | None:
    """Return where two outputs, [rows, columns] each, first differ in bits, shape or dtype."""
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
    return None


def describe_slot(where: dict[str, Any]) -> str:
    """Describe a place that `first_difference` found."""
    if "section" in where:
        node = f", draft node {where['row'] - 1}" if where["row"] else ""
        name = PLACE_NAMES[Section(where["section"])]
        return f"{name} {where['place']} of {where['owner']}{node}, element {where['element']}:"
    return (
        f"{where['model']} layer {where['layer']} ({where['kind']}), {where['tensor']},"
        f" slot {where['slot']} of {where['owner']}, head {where['head']},"
        f" element {where['element']}:"
    )
