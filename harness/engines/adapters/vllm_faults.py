"""Fault classes of vLLM, told by what it does: see `Fault`."""

from collections.abc import Mapping

from torch import Tensor

from harness.engines.faults import (
    OF_CONTENTS,
    Fault,
    has_input,
    padded,
    tail_is_used,
    tail_was_used,
    writes_foreign_slots,
)
from harness.lockstep.observation import Observation
from reference.batch import Mode

SLOTS = ("slot_mapping.full", "slot_mapping.swa")
"""The static inputs that say where tokens store their KV; a negative slot stores nowhere."""


def is_slot(held: Tensor) -> Tensor:
    """Say of each value of a slot mapping whether it names a slot."""
    return held >= 0


def stores_by_stale_slots(observation: Observation) -> bool:
    """Whether padded tokens hold slots, and slots that are nobody's to write were written.

    A release may pad a prefill that it runs eagerly too, to the size of a graph.
    """
    eagerly = any(bool(is_slot(slots).any()) for slots in observation.padding.values())
    replayed = padded(observation) and tail_is_used(observation, SLOTS, is_slot)
    return (eagerly or replayed) and writes_foreign_slots(observation)


def in_pieces(observation: Observation) -> bool:
    """Whether a replay was to be of several graphs: of pieces, with attention between them."""
    facts = observation.facts
    return facts is not None and (facts.graphs_expected or 0) > 1


def replays_one_graph(observation: Observation) -> bool:
    """Whether it was of one instead, which attention is in."""
    facts = observation.facts
    return in_pieces(observation) and facts is not None and facts.graphs_replayed == 1


def catches_up(observation: Observation) -> bool:
    """Whether a drafter is to catch up by a graph that was captured for it."""
    return observation.mode is Mode.DRAFT_EXTEND and observation.expected_graph


FAULTS: Mapping[str, Fault] = {
    "slot_tail": Fault(
        statement="padded tokens keep an earlier batch's slots, and store there (pull request"
        " 36580: the tail was filled from the padded count of tokens on)",
        properties=frozenset({"write_frame"}),
        lives=has_input(SLOTS),
        exposed=tail_was_used(SLOTS, is_slot),
        shows=stores_by_stale_slots,
        nowhere="no batch brings it a static slot mapping",
        follows=OF_CONTENTS | {"live_inputs"},
    ),
    "attention_captured": Fault(
        statement="graphs that are to break at attention hold it, by what its metadata was then",
        properties=frozenset({"captured_path"}),
        lives=in_pieces,
        exposed=in_pieces,
        shows=replays_one_graph,
        nowhere="its replays are of one graph, attention with the rest",
        follows=OF_CONTENTS,
    ),
    "padding_unreplayed": Fault(
        statement="a drafter catches up eagerly where its batch is padded, though graphs are"
        " captured for their sizes: whether a batch is uniform is asked with its padding counted",
        properties=frozenset({"captured_path"}),
        lives=catches_up,
        exposed=lambda observation: catches_up(observation) and padded(observation),
        shows=lambda observation: catches_up(observation) and observation.replay is None,
        nowhere="no drafter catches up in it by a graph",
    ),
}
"""The fault classes that vLLM's behaviour can tell."""
