"""Static inputs whose padded rows keep the values of an earlier batch."""

from collections.abc import Callable
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.pool import Tables
from paritybit.subjects.bugs.bug import THREAD, Bug, pull
from paritybit.subjects.bugs.expected import (
    COMPILED,
    DECODE,
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    PREFILL,
    VERIFY,
    Row,
    seen,
)
from paritybit.subjects.contracts import Policy
from paritybit.subjects.key_lists import Lists
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import LocationScheme

FAMILY = "stale static input in padded rows"

KEPT = {"policy": Policy.KEEP}

DECODING = frozenset({Mode.DECODE, Mode.TARGET_VERIFY})

ON_HOST = ("seq_lens_cpu",)
"""The input of runners that plan their metadata ahead. A compiled runner has no host copy."""

MULTI_LAYER = pull("sgl-project/sglang", 22958)


def draft_extend_bug(
    name: str,
    mechanism: str,
    expected: Row,
    **rows: dict[str, Any],
) -> Bug:
    """Return a bug of a copied draft-extend runner that does not reset some padding."""
    return Bug(
        name=name,
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=MULTI_LAYER,
        mechanism=mechanism,
        expected=expected,
        rows=rows,
        modes=frozenset({Mode.DRAFT_EXTEND}),
    )


class DerivesLocationsBeforeClearing(GraphRunner):
    """A runner whose backend derives SWA locations from the slots of the previous batch."""

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Translate the contents of the slot buffer, then clear it for a dummy run."""
        slots = self.view("out_cache_loc", bucket)
        derived = self.pool.translate_loc_from_full_to_swa(slots)
        super().populate(batch, bucket, padded=padded)
        if batch is None:
            self.view("out_cache_loc_swa", bucket).copy_(derived)


class UnwrittenRequestTable(Tables):
    """Index tables whose reserved row is uninitialised."""

    def reset(self) -> None:
        """Clear all indices except the reserved row."""
        super().reset()
        slots = self.full_to_swa_index_mapping.shape[0] - 2
        columns = torch.arange(self.req_to_token.shape[1], device=self.req_to_token.device)
        self.req_to_token[0] = columns % slots + 1


class PlansOneDummyRow(GraphRunner):
    """A runner whose dummy run describes one request, whatever the rows of the graph."""

    dummy = False

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Update the static inputs, and save whether this is a dummy run."""
        self.dummy = batch is None
        super().populate(batch, bucket, padded=padded)

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        """Write the key lists of a bucket, or of one request in a dummy run."""
        super().list_rows(1 if self.dummy else bucket, lists)


BUGS = (
    Bug(
        name="swa_pad",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552) + ", fixed by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is not reset when the batch is padded. Padded rows write K "
            "and V into SWA slots that an earlier, fuller batch left there."
        ),
        expected=seen(
            "kv_parity",
            DECODE,
            VERIFY,
            # Prefill attention reads real tokens only, so the wrong padded locations stay unread.
            instead={PREFILL: "live_inputs"},
        ),
        rows={"out_cache_loc_swa": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="req_pool_pad",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(26292),
        mechanism=(
            "req_pool_indices is not reset when the batch is padded. The dummy attention "
            "of a padded row follows a stale request row in req_to_token to KV that was "
            "freed or belongs to another request."
        ),
        expected=seen("hermetic_replay", DECODE, COMPILED, VERIFY, DRAFT, FROZEN, DRAFT_EXTEND),
        rows={"req_pool_indices": {"policy": Policy.KEEP}},
        also_in=(LocationScheme.PER_LAYER, LocationScheme.PRESET),
    ),
    Bug(
        name="verify_positions_pad",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 24401),
        mechanism=(
            "positions is not reset when the batch is padded. Padded rows apply the "
            "rotary positions of an earlier, fuller batch."
        ),
        expected=seen("live_inputs", DECODE, VERIFY),
        rows={"positions": KEPT},
        needs=ON_HOST,
        modes=DECODING,
    ),
    draft_extend_bug(
        "extend_positions_pad",
        "The copied runner does not reset positions. Padded tokens get the positions of "
        "an earlier batch. In a model without sinks this changes no output, because each "
        "padded token sees at most one key.",
        seen("live_inputs", DRAFT_EXTEND),
        positions=KEPT,
    ),
    draft_extend_bug(
        "extend_counts_pad",
        "The copied runner does not reset extend_seq_lens. The last token of a padded "
        "request is looked up at a position from an earlier batch.",
        seen("hermetic_replay", DRAFT_EXTEND),
        extend_seq_lens=KEPT,
    ),
    Bug(
        name="dummy_run_indptr_pad",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 40003),
        mechanism=(
            "A dummy run writes the cumulative lengths for its one request only. The "
            "following rows use the cumulative lengths of the last real batch."
        ),
        expected=seen("hermetic_replay", DECODE, FROZEN),
        parts={Part.RUNNER: PlansOneDummyRow},
        needs=ON_HOST,
        modes=frozenset({Mode.DECODE, Mode.FROZEN_DRAFT}),
    ),
    Bug(
        name="cleared_after_deriving",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=pull("vllm-project/vllm-ascend", 15417),
        mechanism=(
            "A dummy run clears the slots of the last batch after the backend has already "
            "derived its SWA locations from them. Dummy rows write into the SWA slots of "
            "that batch."
        ),
        expected=seen("kv_parity", DECODE, VERIFY),
        parts={Part.RUNNER: DerivesLocationsBeforeClearing},
        needs=("out_cache_loc_swa",),
        modes=DECODING,
    ),
    Bug(
        name="request_table_unwritten",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 1782),
        mechanism=(
            "req_to_token is allocated without being zeroed. Padded rows follow its "
            "reserved row to whatever slots the memory contains."
        ),
        expected=seen("read_frame", DECODE),
        parts={Part.TABLES: UnwrittenRequestTable},
        needs=ON_HOST,
        modes=frozenset({Mode.DECODE}),
    ),
)
