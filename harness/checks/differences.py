"""Finds and describes the first difference of two storages or outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

from paritybit.harness.lockstep.bits import bits, first_index, form, hex_bits
from paritybit.harness.lockstep.observation import Snapshot
from paritybit.reference.config import Kind, Role
from paritybit.reference.model import Output
from paritybit.reference.pool import KVLayout
from paritybit.reference.state_pool import Section
from torch import Tensor

Sections = Mapping[Section, Tensor]
"""The other state of one world, or a mask of it, by section."""

PLACE_NAMES = {Section.RECURRENT: "recurrent state slot", Section.DRAFT_TABLE: "draft table row"}
"""The name of a place in each section of other state."""


def first_kv_difference(
    layout: KVLayout, left: Tensor, right: Tensor, mask: Tensor
) -> dict[str, Any]:
    """Return the place where two storages of a layout first differ, ignoring slot 0.

    The order is: target before draft, layers in model order, K before V, slots ascending, then
    other state. Only elements in `mask`, bool in the storage's layout, are compared. Raises
    ValueError if they do not differ.
    """
    views = [
        {(role, kind): arena for role, kind, arena in layout.arenas_of(storage)}
        for storage in (left, right, mask)
    ]
    for role, kind, layer, of_kind in layout.layers():
        one, other, looked_at = (view[role, kind][of_kind] for view in views)
        different = (bits(one) != bits(other)) & looked_at
        different[:, 0] = False
        if different.any():
            index = plane, slot, head, element = first_index(different)
            return {
                **kv_place(role, kind, layer, (plane, slot, head, element)),
                "differing_slots": sorted(set(different.nonzero()[:, 1].tolist())),
                "eager_bits": hex_bits(one[index]),
                "graph_bits": hex_bits(other[index]),
            }
    return first_state_difference(*map(layout.sections_of, (left, right, mask)))


def kv_place(role: Role, kind: Kind, layer: int, index: Sequence[int]) -> dict[str, Any]:
    """Return the place of an element of KV. `index` has its plane, slot, head and element."""
    plane, slot, head, element = index
    return {
        "model": str(role),
        "layer": layer,
        "kind": str(kind),
        "tensor": "KV"[plane],
        "slot": slot,
        "head": head,
        "element": element,
    }


def first_state_difference(
    ones: Sections, others: Sections, masks: Sections | None = None
) -> dict[str, Any]:
    """Return the place where the other state of two worlds first differs, ignoring place 0.

    Raises ValueError if it does not differ.
    """
    for section, one in ones.items():
        other = others[section]
        different = bits(one) != bits(other)
        different[0] = False
        if masks is not None:
            different &= masks[section]
        if different.any():
            place, row, element = first_index(different)
            return {
                "section": str(section),
                "place": place,
                "row": row,
                "element": element,
                "differing_places": sorted({int(index) for index in different.nonzero()[:, 0]}),
                "eager_bits": hex_bits(one[place, row, element]),
                "graph_bits": hex_bits(other[place, row, element]),
            }
    raise ValueError("the two storages do not differ")


def first_output_difference(left: Output, right: Output) -> dict[str, Any]:
    """Return where two outputs, [rows, columns] each, first differ in bits, shape or dtype.

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


def owner_at(where: dict[str, Any], world: Snapshot) -> str:
    """Describe the owner of a place that `first_kv_difference` found."""
    if "section" in where:
        return world.owner_of_place(Section(where["section"]), where["place"])
    return world.owner_of(Kind(where["kind"]), where["slot"])


def describe_slot(where: dict[str, Any]) -> str:
    """Describe a place in a pool or in other state."""
    if "section" in where:
        node = f", draft node {where['row'] - 1}" if where["row"] else ""
        name = PLACE_NAMES[Section(where["section"])]
        return f"{name} {where['place']} of {where['owner']}{node}, element {where['element']}:"
    return (
        f"{where['model']} layer {where['layer']} ({where['kind']}), {where['tensor']},"
        f" slot {where['slot']} of {where['owner']}, head {where['head']},"
        f" element {where['element']}:"
    )
