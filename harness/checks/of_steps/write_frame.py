"""write_frame: stray writes into slots that nobody reads today, or that both worlds hit alike."""

import torch
from torch import Tensor

from harness.checks.differences import PLACE_NAMES
from harness.checks.property import Description, Property
from harness.explain.cause import diverged_cause
from harness.lockstep.bits import any_set, bits, first_index
from harness.lockstep.observation import Observation, Snapshot
from reference.batch import Mode
from reference.config import Kind
from reference.state_pool import Section
from subjects.protocol import Offer


def writes_outside_frame(observation: Observation, world: Snapshot) -> Tensor:
    """Return, in the storage's layout, which elements one world wrote outside the step's frame.

    That is: changed, but in no slot of the step's out_cache_loc in the pool of the model
    that writes, in no state of its own requests that its mode writes, nor in slot 0.
    """
    changed = bits(world.after) != bits(world.before)
    for role, kind, arena in observation.layout.arenas_of(changed):
        arena[:, :, 0] = False
        if world.batch is not None and role is observation.mode.written:
            full = world.batch.out_cache_loc
            own = full if kind is Kind.FULL else world.mapping[full]
            arena.index_fill_(2, own, value=False)
    sections = observation.layout.sections_of(changed)
    for places in sections.values():
        places[0] = False
    if world.batch is not None:
        slots, rows = world.batch.mamba_track_indices, world.batch.req_pool_indices
        match observation.mode:
            case Mode.EXTEND | Mode.DECODE:
                sections[Section.RECURRENT][:, :1].index_fill_(0, slots, value=False)
            case Mode.TARGET_VERIFY:  # The states of a tree's nodes, the request's own apart.
                sections[Section.RECURRENT][:, 1:].index_fill_(0, slots, value=False)
            case Mode.DRAFT | Mode.FROZEN_DRAFT:
                sections[Section.DRAFT_TABLE].index_fill_(0, rows, value=False)
    return changed


def flag(observation: Observation) -> Tensor:
    """Whether either world wrote outside the step's frame."""
    worlds = observation.graph, observation.eager
    return any_set(torch.stack([writes_outside_frame(observation, world) for world in worlds]))


def describe(observation: Observation) -> Description:
    """Name the first slot, or place beside KV, that a world wrote outside the frame."""
    for name, world in (("graph", observation.graph), ("eager", observation.eager)):
        written = writes_outside_frame(observation, world)
        for role, kind, arena in observation.layout.arenas_of(written):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": name, "model": str(role), "kind": str(kind), "slot": slot}
                where["owner"] = observation.graph.owner_of(kind, slot)
                message = (
                    f"the {name} world changed {role} {kind} slot {slot} of {where['owner']},"
                    " which is not in the step's out_cache_loc"
                )
                return message, where
        for section, places in observation.layout.sections_of(written).items():
            if places.any():
                place = first_index(places.any(dim=(1, 2)))[0]
                where = {"world": name, "section": str(section), "place": place}
                where["owner"] = observation.graph.owner_of_place(section, place)
                message = (
                    f"the {name} world changed {PLACE_NAMES[section]} {place} of {where['owner']},"
                    " which is not the step's to change"
                )
                return message, where
    raise ValueError("no slot was changed")


WRITE_FRAME = Property(
    id="write_frame",
    statement="a step changes only the slots in its own out_cache_loc, its requests' own state"
    " and slot 0",
    needs=frozenset({Offer.KV}),
    flag=flag,
    describe=describe,
    worlds_diverge=True,
    cause=diverged_cause,
)
