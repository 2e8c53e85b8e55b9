"""Fault classes of vLLM, told by what it does: see `Fault`."""

from collections.abc import Mapping

from torch import Tensor

from harness.checks.of_steps.write_frame import writes_outside_frame
from harness.engines.faults import (
    Fault,
    has_input,
    inputs_called,
    padded,
)
from harness.engines.statics import before, tail
from harness.lockstep.observation import Observation

SLOTS = ("slot_mapping.full", "slot_mapping.swa")
"""The static inputs that say where tokens store their KV; a negative slot stores nowhere."""


def hold_slots(observation: Observation, held: Mapping[str, Tensor]) -> bool:
    """Whether padded tokens of a replay hold slots, by what static inputs held."""
    return padded(observation) and any(
        bool((tail(observation, name, held[name]) >= 0).any())
        for name in inputs_called(observation, SLOTS)
    )


def held_slots_before(observation: Observation) -> bool:
    """Whether what are padded tokens now held slots before the replay."""
    return hold_slots(observation, before(observation))


def stores_by_stale_slots(observation: Observation) -> bool:
    """Whether padded tokens hold slots, and slots that are nobody's to write were written.

    A release may pad a prefill that it runs eagerly too, to the size of a graph.
    """
    eagerly = any(bool((slots >= 0).any()) for slots in observation.padding.values())
    if not eagerly and not hold_slots(observation, observation.static):
        return False
    written = writes_outside_frame(observation, observation.graph)
    return any(bool(arena.any()) for _, _, arena in observation.layout.arenas_of(written))


FAULTS: Mapping[str, Fault] = {
    "slot_tail": Fault(
        statement="padded tokens keep an earlier batch's slots, and store there (pull request"
        " 36580: the tail was filled from the padded count of tokens on)",
        properties=frozenset({"write_frame"}),
        lives=has_input(SLOTS),
        exposed=held_slots_before,
        shows=stores_by_stale_slots,
        nowhere="no batch brings it a static slot mapping",
        follows=frozenset(
            {
                "kv_parity",
                "logits_parity",
                "live_inputs",
                "hermetic_replay",
                "padding_noninterference",
                "token_trajectory",
                "dense_agreement",
            }
        ),
    ),
}
"""The fault classes that vLLM's behaviour can tell."""
