"""write_frame: stray writes into slots that nobody reads today, or that both worlds hit alike."""

from torch import Tensor

from harness.checks.differences import PLACE_NAMES
from harness.checks.property import Description, Property
from harness.explain.cause import diverged_cause
from harness.lockstep.bits import any_set, first_index, unequal
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
    layout, batch = observation.layout, world.batch
    # The reserved slot and place are compared nowhere.
    changed = unequal(world.after, world.before).logical_and_(observation.compared)
    if batch is None:
        return changed
    role = observation.mode.written
    if role is not None:
        full = batch.out_cache_loc
        for kind in Kind:
            own = full if kind is Kind.FULL else world.mapping[full]
            layout.arena_of(changed, role, kind).index_fill_(2, own, value=False)
    match observation.mode:
        case Mode.EXTEND | Mode.DECODE:
            states = layout.section_of(changed, Section.RECURRENT)
            states[:, :1].index_fill_(0, batch.mamba_track_indices, value=False)
        case Mode.TARGET_VERIFY:  # The states of a tree's nodes, the request's own apart.
            states = layout.section_of(changed, Section.RECURRENT)
            states[:, 1:].index_fill_(0, batch.mamba_track_indices, value=False)
        case Mode.DRAFT | Mode.FROZEN_DRAFT:
            candidates = layout.section_of(changed, Section.DRAFT_TABLE)
            candidates.index_fill_(0, batch.req_pool_indices, value=False)
    return changed


def flag(observation: Observation) -> Tensor:
    """Whether either world wrote outside the step's frame."""
    graph, eager = (
        writes_outside_frame(observation, world) for world in (observation.graph, observation.eager)
    )
    return any_set(graph.logical_or_(eager))


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
