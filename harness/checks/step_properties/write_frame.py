"""write_frame: detects stray writes, even to slots that are never read or by both worlds."""

from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.storages import strayed
from paritybit.harness.checks.differences import PLACE_NAMES, Sections
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import any_set, first_index, unequal
from paritybit.harness.lockstep.observation import Observation, Snapshot
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind, Role
from paritybit.reference.state_pool import Section
from torch import Tensor


def writes_outside_frame(observation: Observation, world: Snapshot) -> Tensor:
    """Return which elements one world wrote outside the step's frame, in the storage's layout.

    The frame is the slots of out_cache_loc in the pool of the writing model, and the state of the
    batch's requests that the mode writes. See `judged` for reserved slots and places.
    """
    return _changed_outside(observation, world).logical_and_(judged(observation))


def judged(observation: Observation) -> Tensor:
    """Return which elements may not be written outside the frame, in the storage's layout.

    They are those that are compared: padded rows write to the reserved slots and places. A draft
    over frozen KV writes no KV, not even to reserved slots.
    """
    if observation.mode is not Mode.FROZEN_DRAFT:
        return observation.compared
    mask = observation.compared.clone()
    for _, _, arena in observation.layout.arenas_of(mask):
        arena.fill_(True)
    return mask


def _changed_outside(observation: Observation, world: Snapshot) -> Tensor:
    """Return the same as `writes_outside_frame`, including elements that are not judged."""
    layout, batch = observation.layout, world.batch
    changed = unequal(world.after, world.before)
    if batch is None:
        return changed
    role = observation.mode.written
    if role is not None:
        full = batch.out_cache_loc
        for kind in Kind:
            own = full if kind is Kind.FULL else world.mapping[full]
            layout.arena_of(changed, role, kind).index_fill_(2, own, value=False)
    keep_own_places(layout.sections_of(changed), observation.mode, batch)
    return changed


def keep_own_places(sections: Sections, mode: Mode, batch: ForwardBatch) -> None:
    """Clear the places that a forward of a batch may change in masks of other state."""
    slots = batch.mamba_track_indices
    match mode:
        case Mode.EXTEND | Mode.DECODE:
            sections[Section.RECURRENT][:, :1].index_fill_(0, slots, value=False)
        case Mode.TARGET_VERIFY:  # The states of a tree's nodes, without the request's own.
            sections[Section.RECURRENT][:, 1:].index_fill_(0, slots, value=False)
        case Mode.DRAFT | Mode.FROZEN_DRAFT:
            sections[Section.DRAFT_TABLE].index_fill_(0, batch.req_pool_indices, value=False)


def flag(observation: Observation) -> Flag:
    """Whether either world wrote outside the step's frame."""
    if launches.asks_kernels(observation.compared.device):
        return strayed(observation, judged(observation))
    graph, eager = (
        _changed_outside(observation, world) for world in (observation.graph, observation.eager)
    )
    return any_set(graph.logical_or_(eager).logical_and_(judged(observation)))


def describe(observation: Observation) -> Description:
    """Name the first slot, or place of other state, that a world wrote outside the frame."""
    for name, world in (("graph", observation.graph), ("eager", observation.eager)):
        written = writes_outside_frame(observation, world)
        for role, kind, arena in observation.layout.arenas_of(written):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                return _describe_slot(observation, name, (role, kind), slot)
        found = _describe_beside(observation, name, observation.layout.sections_of(written))
        if found is not None:
            return found
    raise ValueError("no slot was changed")


def _describe_slot(
    observation: Observation, name: str, arena: tuple[Role, Kind], slot: int
) -> Description:
    role, kind = arena
    where = {"world": name, "model": str(role), "kind": str(kind), "slot": slot}
    where["owner"] = observation.graph.owner_of(kind, slot)
    message = (
        f"the {name} run changed {role} {kind} slot {slot} of {where['owner']}, which is "
        "not in the step's out_cache_loc"
    )
    return message, where


def _describe_beside(observation: Observation, name: str, sections: Sections) -> Description | None:
    """Describe the first place of other state that a world wrote outside the frame, or None."""
    for section, places in sections.items():
        if places.any():
            place = first_index(places.any(dim=(1, 2)))[0]
            where = {"world": name, "section": str(section), "place": place}
            where["owner"] = observation.graph.owner_of_place(section, place)
            message = (
                f"the {name} run changed {PLACE_NAMES[section]} {place} of "
                f"{where['owner']}, which does not belong to the step"
            )
            return message, where
    return None


WRITE_FRAME = Property(
    id="write_frame",
    statement=(
        "a step changes only the slots in its out_cache_loc, the state of its own requests, "
        "and slot 0; a draft over frozen KV changes no slot"
    ),
    flag=flag,
    describe=describe,
    worlds_diverge=True,
)
