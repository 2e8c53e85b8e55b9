"""What the engine's padding must hold: its contract of padded rows, as rows of data.

Most of its padded rows run no query, so that a wrong value in them changes no output: they are
judged by what the buffers hold.
"""

from typing import Any

from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION
from paritybit.subjects.engines.paged.engine import SLOTS, TABLES
from paritybit.subjects.engines.shared.loading import takes
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.padded import PaddingRow
from paritybit.subjects.engines.shared.tensors import holds_only

GATHERING = ["idx_mapping", "num_reqs_padded", "out", "out_ptrs", "num_computed_tokens"]
"""What the engine's block tables may be gathered by, in any release."""

COMMON = "spec_decode.speculator"
"""The module of what all drafters have in common, in later releases."""

OF_PADDING, MARKING = "is_padding", "VLLM_MOE_SKIP_PADDING"
"""The static buffer that marks padded tokens, in later releases, and the setting to read it."""

LAST_TOKENS = "last_token_indices"
"""The drafter's static buffer of where each request ends, in all but the first releases."""

OF_FIRST_DRAFTERS = (
    *("hidden_states", "idx_mapping", "temperature", "seeds", "draft_tokens", "inputs_embeds"),
    *("draft_logits", "arange", "current_draft_step"),
)
"""All tensors that a drafter of the first releases holds, by name."""

COPYING = ["num_reqs", "idx_mapping", "temperature", "seeds", "dummy_run"]
"""What its drafter may be given of requests."""


def gathers_by(tables: Any, name: str) -> bool:
    """Whether the engine gathers its block tables by an argument of this name."""
    return takes(type(tables).gather_block_tables, name, GATHERING)


def zeroes_block_tables(runner: Any) -> bool:
    """Whether the engine is told how many rows of its block tables are padded: it clears them."""
    return not runner.pieces and gathers_by(runner.runner.block_tables, "num_reqs_padded")


def marks_rows(runner: Any) -> bool:
    """Whether rows that are nobody's are -1 in the drafter's map of requests: their slots are too.

    It is so since batches of no request at all are told apart. Raises PartMissingError where what
    all drafters have in common no longer copies requests by the name it had from the first.
    """
    drafter = runner.runner.speculator
    copied = getattr(drafter, "_copy_request_inputs", None)
    if copied is None and of_common_code(drafter):
        raise PartMissingError(
            f"the engine's {type(drafter).__name__} has no _copy_request_inputs, so "
            "paritybit cannot tell whether it marks unowned rows"
        )
    return copied is not None and takes(copied, "dummy_run", COPYING)


def marks_padding(settings: Any, buffers: Any) -> bool:
    """Whether the engine is set to read which tokens are padding.

    Raises PartMissingError where it has a buffer of that and no such setting.
    """
    if hasattr(buffers, OF_PADDING) and not hasattr(settings, MARKING):
        raise PartMissingError(
            f"the engine has no {MARKING}, so paritybit cannot tell whether it reads "
            "which tokens are padding"
        )
    return bool(getattr(settings, MARKING, False))


def names_last_tokens(runner: Any) -> bool:
    """Whether the drafter has a static buffer of last tokens: all but the first releases have.

    Raises PartMissingError where one without it holds a tensor that the first releases' did not.
    """
    drafter = runner.runner.speculator
    if hasattr(drafter, LAST_TOKENS) or of_common_code(drafter):
        return True
    holds_only(drafter, OF_FIRST_DRAFTERS)
    return False


def of_common_code(drafter: Any) -> bool:
    """Whether the drafter is built on what all drafters have in common, as in later releases."""
    return any(one.__module__.endswith(COMMON) for one in type(drafter).__mro__)


CONTRACT = (
    *(PaddingRow(name, lambda tokens: -1) for name in SLOTS),
    PaddingRow("seq_lens", lambda tokens: 0, of_requests=True),
    PaddingRow("query_start_loc", lambda tokens: tokens, of_requests=True),
    PaddingRow(OF_PADDING, lambda tokens: 1, True, lambda runner: runner.marks_padding),
    *(PaddingRow(name, lambda tokens: 0, True, zeroes_block_tables, True) for name in TABLES),
)
"""The engine's contract; input ids and positions of padded tokens are stale, and it holds so."""

OF_DRAFTERS = (
    PaddingRow("drafter.query_start_loc", lambda tokens: tokens, of_requests=True),
    PaddingRow("drafter.idx_mapping", lambda tokens: -1, False, marks_rows, True),
)
"""The contract of the drafter's own static buffers, whatever it does."""

OF_DRAFTS = {
    Mode.DRAFT_EXTEND: (
        *OF_DRAFTERS,
        PaddingRow("drafter.seq_lens", lambda tokens: 0, of_requests=True),
        PaddingRow(f"drafter.{LAST_TOKENS}", lambda tokens: 0, False, names_last_tokens, True),
        *CONTRACT,
    ),
    Mode.DRAFT: (
        *OF_DRAFTERS,
        *(PaddingRow(name, lambda tokens: -1) for name in SLOTS),
        PaddingRow(
            "drafter.seq_lens", lambda tokens: SPECULATION.forwards - 1, True, of_requests=True
        ),
    ),
}
"""The contract where it catches up, the target's too, and where it proposes: a padded row, of no
tokens, grows with each forward but the first."""
