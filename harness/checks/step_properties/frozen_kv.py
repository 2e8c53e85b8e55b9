"""frozen_kv: detects writes of a draft that must only read KV."""

import torch
from paritybit.harness.checks.differences import PLACE_NAMES, Sections
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.checks.twins import (
    WORLDS,
    changed_beside,
    changed_reserved,
    first_slot_outside,
    twins_wrote_outside,
)
from paritybit.harness.lockstep.bits import any_set, first_index, unequal
from paritybit.harness.lockstep.observation import Observation, Snapshot
from paritybit.harness.lockstep.scale.kept import Arena, Compared
from paritybit.reference.batch import Mode
from paritybit.reference.state_pool import Section
from torch import Tensor


def frozen_changes(observation: Observation, world: Snapshot) -> Tensor:
    """Return what one world changed, except its own draft table rows, in the storage's layout."""
    changed = unequal(world.after, world.before)
    keep_own_rows(observation.layout.section_of(changed, Section.DRAFT_TABLE), world)
    return changed


def keep_own_rows(rows: Tensor, world: Snapshot) -> None:
    """Clear the reserved row and the batch's rows in a mask of the draft table."""
    rows[0] = False
    if world.batch is not None:
        rows.index_fill_(0, world.batch.req_pool_indices, value=False)


def frozen_beside(observation: Observation, twins: Compared, world: str) -> Sections:
    """Return what a world without copies changed in other state, except its own rows."""
    changed = changed_beside(twins, world)
    keep_own_rows(changed[Section.DRAFT_TABLE], getattr(observation, world))
    return changed


def flag(observation: Observation) -> Tensor | bool:
    """Whether a frozen-KV draft changed any bit outside its own draft table rows."""
    if observation.mode is not Mode.FROZEN_DRAFT:
        return False
    twins = observation.twins
    if twins is not None:
        beside = [frozen_beside(observation, twins, world).values() for world in WORLDS]
        reserved = [changed_reserved(twins, world).values() for world in WORLDS]
        changed = [any_set(one.contiguous()) for part in (*beside, *reserved) for one in part]
        return torch.stack([twins_wrote_outside(twins), *changed]).any()
    graph, eager = (
        frozen_changes(observation, world) for world in (observation.graph, observation.eager)
    )
    return any_set(graph.logical_or_(eager))


def describe(observation: Observation) -> Description:
    """Name the first slot, or place of other state, that the draft wrote."""
    for name, world in (("graph", observation.graph), ("eager", observation.eager)):
        if observation.twins is not None:
            slots = _slots_of_twins(observation.twins, name)
            beside = frozen_beside(observation, observation.twins, name)
        else:
            changed = frozen_changes(observation, world)
            slots = [
                (
                    (role, kind),
                    observation.layout.sizes.number(first_index(arena.any(dim=(0, 1, 3, 4)))[0]),
                )
                for role, kind, arena in observation.layout.arenas_of(changed)
                if arena.any()
            ]
            beside = observation.layout.sections_of(changed)
        for (role, kind), slot in slots:
            where = {"world": name, "model": str(role), "kind": str(kind), "slot": slot}
            return f"a frozen-KV draft in the {name} run wrote {role} {kind} slot {slot}", where
        for section, places in beside.items():
            if places.any():
                place = first_index(places.any(dim=(1, 2)))[0]
                where = {"world": name, "section": str(section), "place": place}
                message = (
                    f"a frozen-KV draft in the {name} run wrote {PLACE_NAMES[section]} {place}"
                )
                return message, where
    raise ValueError("no slot was changed")


def _slots_of_twins(twins: Compared, world: str) -> list[tuple[Arena, int]]:
    """Return the first slot of each sub-pool that a world changed, the reserved one first."""
    found = [(arena, 0) for arena, slot in changed_reserved(twins, world).items() if slot.any()]
    outside = first_slot_outside(twins, world)
    return found if outside is None else [*found, outside]


FROZEN_KV = Property(
    id="frozen_kv",
    statement="a draft that reads frozen KV changes only its own draft table rows",
    flag=flag,
    describe=describe,
)
