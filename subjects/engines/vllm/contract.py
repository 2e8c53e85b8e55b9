"""What the engine's padding must hold: its contract of padded rows, as rows of data.

Most of its padded rows run no query, so that a wrong value in them changes no output: they are
judged by what the buffers hold.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.batch import ForwardBatch
from subjects.engines.vllm.runner import VllmRunner


@dataclass(frozen=True)
class PaddingRow:
    """What a static input holds behind its live part, if the engine promises it.

    `value` is called with the live tokens. It holds to the end of the buffer, or with
    `in_bucket` to that of the bucket. `promised` says whether this release does.
    """

    name: str
    value: Callable[[int], int]
    in_bucket: bool = False
    promised: Callable[[VllmRunner], bool] = lambda runner: True


def gathers_by(runner: VllmRunner, name: str) -> bool:
    """Whether the engine gathers its block tables by an argument of this name."""
    gather = type(runner.runner.block_tables).gather_block_tables
    return name in inspect.signature(gather).parameters


def zeroes_block_tables(runner: VllmRunner) -> bool:
    """Whether the engine is told how many rows of its block tables are padded: it clears them."""
    return gathers_by(runner, "num_reqs_padded")


def clears_below_windows(runner: VllmRunner) -> bool:
    """Whether the engine is told where windows begin: it clears the blocks below them."""
    return gathers_by(runner, "num_computed_tokens")


CONTRACT = (
    PaddingRow("slot_mapping.full", lambda tokens: -1),
    PaddingRow("slot_mapping.swa", lambda tokens: -1),
    PaddingRow("seq_lens", lambda tokens: 0),
    PaddingRow("query_start_loc", lambda tokens: tokens),
    PaddingRow("is_padding", lambda tokens: 1, in_bucket=True),
    PaddingRow("block_table.full", lambda tokens: 0, True, zeroes_block_tables),
    PaddingRow("block_table.swa", lambda tokens: 0, True, zeroes_block_tables),
)
"""The engine's contract; input ids and positions of padded tokens are stale, and it holds so."""


def padding_of(
    runner: VllmRunner, given: Mapping[str, Tensor], batch: ForwardBatch, bucket: int
) -> dict[str, tuple[int, Tensor]]:
    """Return, by static input, where padding begins behind a batch's live part and what it holds.

    A row of a block table is one element of it.
    """
    statics, found = runner.statics(), dict[str, tuple[int, Tensor]]()
    for row in CONTRACT:
        if row.name not in statics or not row.promised(runner):
            continue
        held = statics[row.name]
        live = len(given[row.name]) if row.name in given else batch.live_requests
        tokens = row.name not in {"seq_lens", "query_start_loc"} and held.ndim == 1
        end = bucket * (runner.tokens_per_request if tokens else 1)
        last = end if row.in_bucket else held.shape[0]
        right = torch.full_like(held[live:last], row.value(batch.live_tokens))
        found[row.name] = live, right
    return found
