"""frozen_kv: a stray write of a draft that only reads."""

from torch import Tensor

from harness.checks.differences import PLACE_NAMES
from harness.checks.property import Description, Property
from harness.explain.cause import diverged_cause
from harness.lockstep.bits import any_set, first_index, unequal
from harness.lockstep.observation import Observation, Snapshot
from reference.batch import Mode
from reference.state_pool import Section
from subjects.protocol import Offer


def frozen_changes(observation: Observation, world: Snapshot) -> Tensor:
    """Return, in the storage's layout, what one world changed, its own draft table rows apart."""
    changed = unequal(world.after, world.before)
    rows = observation.layout.section_of(changed, Section.DRAFT_TABLE)
    rows[0] = False
    if world.batch is not None:
        rows.index_fill_(0, world.batch.req_pool_indices, value=False)
    return changed


def flag(observation: Observation) -> Tensor | bool:
    """Whether a frozen-KV draft changed any bit but of its own draft table rows."""
    if observation.mode is not Mode.FROZEN_DRAFT:
        return False
    graph, eager = (
        frozen_changes(observation, world) for world in (observation.graph, observation.eager)
    )
    return any_set(graph.logical_or_(eager))


def describe(observation: Observation) -> Description:
    """Name the first slot, or place beside KV, that the draft wrote."""
    for name, world in (("graph", observation.graph), ("eager", observation.eager)):
        changed = frozen_changes(observation, world)
        for role, kind, arena in observation.layout.arenas_of(changed):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": name, "model": str(role), "kind": str(kind), "slot": slot}
                message = f"a frozen-KV draft of the {name} world wrote {role} {kind} slot {slot}"
                return message, where
        for section, places in observation.layout.sections_of(changed).items():
            if places.any():
                place = first_index(places.any(dim=(1, 2)))[0]
                where = {"world": name, "section": str(section), "place": place}
                message = (
                    f"a frozen-KV draft of the {name} world wrote {PLACE_NAMES[section]} {place}"
                )
                return message, where
    raise ValueError("no slot was changed")


FROZEN_KV = Property(
    id="frozen_kv",
    statement="a draft that reads frozen KV changes nothing but its own draft table rows",
    needs=frozenset({Offer.KV}),
    flag=flag,
    describe=describe,
    cause=diverged_cause,
)
