"""Checks of two worlds without copies, which were equal before the step.

Differences after the eager forward are changes of the eager world. Further differences outside both
frames, after both forwards, are changes of the graph world.
"""

from typing import Any

import torch
from paritybit.harness.checks.differences import Sections, first_state_difference, kv_place
from paritybit.harness.lockstep.bits import any_set, bits, first_index
from paritybit.harness.lockstep.scale.kept import Arena, Compared
from paritybit.reference.pool import KVLayout
from torch import Tensor

WORLDS = ("graph", "eager")
"""The worlds in the order in which stray writes are searched."""


def twins_differ(twins: Compared) -> Tensor:
    """Whether any compared bit differs between the worlds after the step."""
    ones, others = (twins.after[world].sections for world in ("eager", "graph"))
    beside = [any_set(bits(one[1:]) != bits(others[name][1:])) for name, one in ones.items()]
    return torch.stack([*(found.anywhere for found in twins.graph.values()), *beside]).any()


def first_twin_difference(layout: KVLayout, twins: Compared) -> dict[str, Any]:
    """Return where the worlds first differ after the step, as `first_kv_difference` does."""
    places: dict[tuple[Arena, int], tuple[int, ...]] = {}
    for arena, found in twins.graph.items():
        if found.anywhere:
            index = found.first()
            places[arena, index[0]] = index[1:]
    for role, kind, layer, place in layout.layers():
        if ((role, kind), place) in places:
            found = twins.graph[role, kind]
            eager_bits, graph_bits = found.hex_bits(twins.element_bytes)
            return {
                **kv_place(role, kind, layer, places[(role, kind), place]),
                "differing_elements": int(found.found[0]),
                "eager_bits": eager_bits,
                "graph_bits": graph_bits,
            }
    return first_state_difference(twins.after["eager"].sections, twins.after["graph"].sections)


def changed_beside(twins: Compared, world: str) -> Sections:
    """Return masks of the other state that a world changed in the step."""
    before, after = twins.before[world].sections, twins.after[world].sections
    return {name: bits(places) != bits(before[name]) for name, places in after.items()}


def twins_wrote_outside(twins: Compared) -> Tensor:
    """Whether either world changed KV outside the step's frame, ignoring reserved slots."""
    differences = [found.outside for found in (*twins.eager.values(), *twins.graph.values())]
    strayed = [any_set(slots.contiguous()) for slots in twins.strayed.values()]
    return torch.stack([*differences, *strayed]).any()


def first_slot_outside(twins: Compared, world: str) -> tuple[Arena, int] | None:
    """Return the first slot that a world changed outside the step's frame, or None.

    Stray writes of the eager world also differ after the step, and do not count for the graph
    world.
    """
    by_eager = {
        arena: found.first(outside=True)[2] for arena, found in twins.eager.items() if found.outside
    }
    if world == "eager":
        return next(iter(by_eager.items()), None)
    for arena, found in twins.graph.items():
        if arena in twins.strayed and twins.strayed[arena].any():
            place = first_index(twins.strayed[arena].any(0).any(0))[0]
            return arena, int(twins.lent[arena][place])
        if found.outside and arena not in by_eager:
            return arena, found.first(outside=True)[2]
    return None


def changed_reserved(twins: Compared, world: str) -> dict[Arena, Tensor]:
    """Return masks of the elements of reserved slots that a world changed, by sub-pool."""
    before, after = twins.before[world].reserved, twins.after[world].reserved
    return {arena: bits(slot) != bits(before[arena]) for arena, slot in after.items()}
