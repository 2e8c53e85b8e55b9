"""What the engine's padding must hold: its contract of padded rows, as rows of data.

Most of its padded rows run no query, so that a wrong value in them changes no output: they are
judged by what the buffers hold.
"""

import inspect

from subjects.engines.shared.padded import PaddingRow
from subjects.engines.vllm.runner import VllmRunner


def gathers_by(runner: VllmRunner, name: str) -> bool:
    """Whether the engine gathers its block tables by an argument of this name."""
    gather = type(runner.runner.block_tables).gather_block_tables
    return name in inspect.signature(gather).parameters


def zeroes_block_tables(runner: VllmRunner) -> bool:
    """Whether the engine is told how many rows of its block tables are padded: it clears them."""
    return runner.pads_requests and gathers_by(runner, "num_reqs_padded")


def clears_below_windows(runner: VllmRunner) -> bool:
    """Whether the engine is told where windows begin: it clears the blocks below them."""
    return gathers_by(runner, "num_computed_tokens")


CONTRACT = (
    PaddingRow("slot_mapping.full", lambda tokens: -1),
    PaddingRow("slot_mapping.swa", lambda tokens: -1),
    PaddingRow("seq_lens", lambda tokens: 0, of_requests=True),
    PaddingRow("query_start_loc", lambda tokens: tokens, of_requests=True),
    PaddingRow("is_padding", lambda tokens: 1, in_bucket=True),
    PaddingRow("block_table.full", lambda tokens: 0, True, zeroes_block_tables, True),
    PaddingRow("block_table.swa", lambda tokens: 0, True, zeroes_block_tables, True),
)
"""The engine's contract; input ids and positions of padded tokens are stale, and it holds so."""


def promised(runner: VllmRunner) -> list[PaddingRow]:
    """Return what the release of a runner promises."""
    return [row for row in CONTRACT if row.promised(runner)]
