"""Fault classes of vLLM, told by what it does: see `Fault`."""

from collections.abc import Mapping

from paritybit.harness.engines import evidence
from paritybit.harness.engines.faults import OF_CONTENTS, Fault

FAULTS: Mapping[str, Fault] = {
    "slot_tail": Fault(
        statement=(
            "padded tokens keep an earlier batch's slots and store KV there (pull request "
            "36580: the tail was filled only from the padded token count on)"
        ),
        properties=frozenset({"write_frame"}),
        lives=evidence.has_input(evidence.SLOTS),
        exposed=evidence.tail_was_used(evidence.SLOTS, evidence.is_slot),
        shows=evidence.stores_by_stale_slots,
        nowhere="no batch gives it a static slot mapping",
        follows=OF_CONTENTS | {"live_inputs"},
    ),
    "attention_captured": Fault(
        statement=(
            "graphs that should break at attention contain it, depending on the attention "
            "metadata at capture"
        ),
        properties=frozenset({"captured_path"}),
        lives=evidence.in_pieces,
        exposed=evidence.in_pieces,
        shows=evidence.replays_one_graph,
        nowhere="its replays use one graph that includes attention",
        follows=OF_CONTENTS,
    ),
    "padding_unreplayed": Fault(
        statement=(
            "a drafter catches up eagerly when its batch is padded, although graphs exist for"
            " these sizes. The check whether a batch is uniform counts padding"
        ),
        properties=frozenset({"captured_path"}),
        lives=evidence.catches_up,
        exposed=evidence.catches_up_padded,
        shows=evidence.catches_up_eagerly,
        nowhere="it has no drafter that catches up with a graph",
    ),
}
"""The fault classes that vLLM's behaviour can tell."""
