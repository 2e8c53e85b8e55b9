"""frozen_kv: a stray write of a draft that only reads."""

from torch import Tensor

from harness.checks.property import Description, Property
from harness.explain.cause import diverged_cause
from harness.lockstep.bits import bits, differ, first_index
from harness.lockstep.observation import Observation
from reference.batch import Mode
from subjects.protocol import Offer


def flag(observation: Observation) -> Tensor | bool:
    """Whether a frozen-KV draft changed any bit of any pool."""
    if observation.mode is not Mode.FROZEN_DRAFT:
        return False
    eager, graph = observation.eager, observation.graph
    return differ(graph.after, graph.before) | differ(eager.after, eager.before)


def describe(observation: Observation) -> Description:
    """Name the first slot that the draft wrote."""
    for name, world in (("graph", observation.graph), ("eager", observation.eager)):
        changed = bits(world.after) != bits(world.before)
        for role, kind, arena in observation.layout.arenas_of(changed):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": name, "model": str(role), "kind": str(kind), "slot": slot}
                message = f"a frozen-KV draft of the {name} world wrote {role} {kind} slot {slot}"
                return message, where
    raise ValueError("no slot was changed")


FROZEN_KV = Property(
    id="frozen_kv",
    statement="a draft that reads frozen KV changes no bit of any pool",
    needs=frozenset({Offer.KV}),
    flag=flag,
    describe=describe,
    cause=diverged_cause,
)
