"""Fault classes of vLLM, told by what it does: see `Fault`."""

from collections.abc import Mapping

from paritybit.harness.engines import evidence
from paritybit.harness.engines.faults import OF_CONTENTS, Fault

FAULTS: Mapping[str, Fault] = {
    "slot_tail": Fault(
        statement="padded tokens keep an earlier batch's slots, and store there (pull request"
        " 36580: the tail was filled from the padded count of tokens on)",
        properties=frozenset({"write_frame"}),
        lives=evidence.has_input(evidence.SLOTS),
        exposed=evidence.tail_was_used(evidence.SLOTS, evidence.is_slot),
        shows=evidence.stores_by_stale_slots,
        nowhere="no batch brings it a static slot mapping",
        follows=OF_CONTENTS | {"live_inputs"},
    ),
    "attention_captured": Fault(
        statement="graphs that are to break at attention hold it, by what its metadata was then",
        properties=frozenset({"captured_path"}),
        lives=evidence.in_pieces,
        exposed=evidence.in_pieces,
        shows=evidence.replays_one_graph,
        nowhere="its replays are of one graph, attention with the rest",
        follows=OF_CONTENTS,
    ),
    "padding_unreplayed": Fault(
        statement="a drafter catches up eagerly where its batch is padded, though graphs are"
        " captured for their sizes: whether a batch is uniform is asked with its padding counted",
        properties=frozenset({"captured_path"}),
        lives=evidence.catches_up,
        exposed=evidence.catches_up_padded,
        shows=evidence.catches_up_eagerly,
        nowhere="no drafter catches up in it by a graph",
    ),
}
"""The fault classes that vLLM's behaviour can tell."""
