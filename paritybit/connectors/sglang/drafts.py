"""The forwards of a draft model: their rows, and what these imply.

A draft's KV at a position belongs to the tokens up to that position, as the target's does, and has
the same location. A graph of draft steps has several positions per branch after the cached ones,
and writes one per step but the last, which only samples. Their tokens are known to nobody before
the replay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.sglang.lists import PREFILLS
from paritybit.connectors.sglang.pools import NotRecognisedError, Pool
from paritybit.connectors.sglang.rows import (
    Rows,
    forward_of,
    host,
    implied,
    mode_of,
    requests_of,
    slots_of,
    so_far,
    space,
)
from paritybit.watch.facts import Forward, Row

EXTENDS = ("draft_extend", "draft_extend_v2")
"""Modes in which a draft takes up the tokens that were accepted."""


@dataclass(frozen=True)
class Steps:
    """What a graph of draft steps computes: how many branches per request, and how many steps."""

    topk: int
    steps: int

    @classmethod
    def of(cls, runner: Any) -> "Steps | None":
        """Return what the graphs of a runner compute, or None if they have no steps."""
        topk, steps = (getattr(runner, name, None) for name in ("topk", "speculative_num_steps"))
        return None if topk is None or steps is None else cls(int(topk), int(steps))


def draft_forward_of(
    batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor, steps: Steps | None
) -> tuple[Forward, Rows]:
    """Return the facts of a forward of a draft model. Raises NotRecognisedError.

    The arguments are those of `forward_of`. `steps` is None for a forward without such a graph.
    """
    mode = mode_of(batch)
    if mode in PREFILLS:
        _, found = forward_of(batch, requests, pool, table)
    elif mode in EXTENDS:
        found = extended(batch, requests, pool, table)
    elif mode == "decode" and steps is not None:
        found = stepped(batch, requests, pool, table, steps)
    else:
        raise NotRecognisedError(f"a draft's forward with the mode {mode}")
    return Forward(f"draft {mode}", tuple(found.rows), model="draft "), found


def extended(batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor) -> Rows:
    """Return the rows of a batch whose lengths count the tokens that it computes."""
    found = Rows()
    computed = host(batch.extend_seq_lens_cpu, batch.extend_seq_lens)
    totals = batch.seq_lens.tolist()
    held = slots_of(batch, pool, table, max(totals))
    for index, request in enumerate(requests_of(batch, requests, mode_of(batch))):
        slots = {name: block[index, : totals[index]] for name, block in held.items()}
        found.add(index, row_of(request, totals[index] - computed[index], computed[index], slots))
    return found


def stepped(batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor, steps: Steps) -> Rows:
    """Return the rows of a graph of draft steps: one per branch."""
    found, topk = Rows(), steps.topk
    totals = batch.seq_lens.tolist()
    branches = batch.out_cache_loc.view(len(totals), topk, -1)
    columns = branches.shape[2]
    held = slots_of(batch, pool, table, max(totals) + columns)
    new = {name: slots.cpu() for name, slots in pool.slots(branches).items()}
    for index, request in enumerate(requests_of(batch, requests, mode_of(batch))):
        total = totals[index]
        for branch in range(topk):
            # A chain's slots are those of its next positions, whatever the batch says.
            slots = {
                name: block[index, : total + columns]
                if topk == 1
                else torch.cat((block[index, :total], new[name][index, branch].to(block)))
                for name, block in held.items()
            }
            row = row_of(request, total, columns, slots)
            found.add(index, replace(row, spare=columns - steps.steps + 1))
    return found


def row_of(request: Any, cached: int, computed: int, slots: dict[str, Tensor]) -> Row:
    """Return the row of a request that has these slots."""
    tokens = so_far([*request.origin_input_ids, *request.output_ids], cached + computed)
    return Row(request.rid, tokens, cached, computed, slots, space(request))


def implied_by_draft(found: Rows, mode: str, group: str) -> dict[str, Tensor]:
    """Return the inputs of a draft's forward that its rows imply, by name."""
    if mode != "draft decode":
        inputs = implied(found, mode, group)
        inputs.pop("input_ids", None)  # Those of a draft are one token ahead.
        return inputs
    rows = found.rows
    starts = {at: row.cached for at, row in zip(found.batch_rows, rows, strict=True)}
    return {
        "positions": torch.tensor([row.cached for row in rows]),
        "out_cache_loc": torch.cat([row.slots[group][row.cached :] for row in rows]),
        "seq_lens": torch.tensor(list(starts.values())),
    }
