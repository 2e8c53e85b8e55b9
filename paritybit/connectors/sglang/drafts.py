"""The forwards of a draft model: their rows, and what these imply.

A draft's KV at a position has the same location as the target's. It belongs to the tokens up to
that position, and with EAGLE to the next one too: the draft is given each token with the hidden
state of the position before it. A graph of draft steps has several positions per branch after the
cached ones, and writes one per step but the last, which only samples. Their tokens are known to
nobody before the replay.

A draft may also read the KV of its target and have none of its own. Each of its steps then reads
the positions that the target has computed, and writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sglang.lists import PREFILLS
from paritybit.connectors.sglang.pools import Pool
from paritybit.connectors.sglang.rows import (
    Rows,
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


def reads_ahead(runner: Any) -> bool:
    """Whether the draft model of a runner is given, at each position, the token after it.

    Each of several layers that draft is given another token.
    """
    algorithm = getattr(runner, "spec_algorithm", None)
    layers = getattr(getattr(runner, "server_args", None), "enable_multi_layer_eagle", False)
    return algorithm is not None and bool(algorithm.is_eagle()) and not layers


def target_pool_of(runner: Any) -> Any:
    """Return the pool of the target whose KV a draft reads in place of its own, None without."""
    context = getattr(getattr(runner, "model", None), "kv_context", None)
    return getattr(context, "target_token_to_kv_pool", None)


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
    batch: Any,
    requests: Sequence[Any],
    pool: Pool,
    table: Tensor,
    steps: Steps | None,
    ahead: bool = False,
) -> tuple[Forward, Rows]:
    """Return the facts of a forward of a draft model. Raises NotRecognisedError.

    The arguments are those of `forward_of`. `steps` is None for a forward without such a graph.
    With `ahead`, the tokens of a row begin with the second one of its request.
    """
    mode = mode_of(batch)
    if mode in (*PREFILLS, *EXTENDS):
        found = extended(batch, requests, pool, table, ahead)
    elif mode == "decode" and steps is not None:
        found = stepped(batch, requests, pool, table, steps, ahead)
    else:
        raise NotRecognisedError(f"a draft's forward with the mode {mode}")
    return Forward(f"draft {mode}", tuple(found.rows), model="draft "), found


def frozen_forward_of(
    batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor
) -> tuple[Forward, Rows]:
    """Return the facts of a forward of a draft that only reads the KV of its target.

    The arguments are those of `forward_of`. The batch has a row per branch. Raises
    NotRecognisedError.
    """
    mode = mode_of(batch)
    if mode != "decode":
        raise NotRecognisedError(f"a frozen draft's forward with the mode {mode}")
    found = Rows()
    totals = batch.seq_lens.tolist()
    held = slots_of(batch, pool, table, max(totals))
    for index, request in enumerate(requests_of(batch, requests, mode)):
        slots = {name: block[index, : totals[index]] for name, block in held.items()}
        row = row_of(request, totals[index], 0, slots, ahead=False)
        found.add(index, replace(row, only_reads=True))
    return Forward(f"draft {mode}", tuple(found.rows)), found


def extended(batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor, ahead: bool) -> Rows:
    """Return the rows of a batch whose lengths count the tokens that it computes."""
    found = Rows()
    computed = host(batch.extend_seq_lens_cpu, batch.extend_seq_lens)
    totals = batch.seq_lens.tolist()
    held = slots_of(batch, pool, table, max(totals))
    for index, request in enumerate(requests_of(batch, requests, mode_of(batch))):
        slots = {name: block[index, : totals[index]] for name, block in held.items()}
        cached = totals[index] - computed[index]
        found.add(index, row_of(request, cached, computed[index], slots, ahead))
    return found


def stepped(
    batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor, steps: Steps, ahead: bool
) -> Rows:
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
            row = row_of(request, total, columns, slots, ahead)
            found.add(index, replace(row, spare=columns - steps.steps + 1))
    return found


def row_of(request: Any, cached: int, computed: int, slots: dict[str, Tensor], ahead: bool) -> Row:
    """Return the row of a request that has these slots."""
    known, kept = [*request.origin_input_ids, *request.output_ids], space(request)
    if ahead:
        first, *known = known
        kept = f"{kept} after {first}"
    tokens = so_far(known, cached + computed)
    return Row(request.rid, tokens, cached, computed, slots, kept)


def kept_ids(batch: Any, requests: Sequence[Any], names_next: bool) -> list[int]:
    """Return how many of the ids that each row computes its request keeps.

    The ids of steps are not kept, nor those of drafts that were not accepted. After a chunk, the
    last id is the sampled token unless the release names the next one of the prompt
    (`names_next`); it does so for no token that the request has made itself before a retraction.
    In place of images, models are given other ids than the request has.
    """
    mode, totals = mode_of(batch), batch.seq_lens.tolist()
    of_rows = requests_of(batch, requests, mode)
    if mode in PREFILLS or mode == "draft_extend":
        kept = list(host(batch.extend_seq_lens_cpu, batch.extend_seq_lens))
    else:
        lengths = getattr(batch.spec_info, "num_accept_tokens", None) if mode in EXTENDS else None
        kept = [0] * len(totals) if lengths is None else lengths.tolist()
    for index, (request, total) in enumerate(zip(of_rows, totals, strict=True)):
        prompt = len(request.origin_input_ids)
        last = total >= prompt + len(request.output_ids)
        if mode in PREFILLS and not (last or (names_next and total < prompt)):
            kept[index] -= 1
        if getattr(request, "multimodal_inputs", None) is not None:
            kept[index] = 0
    return kept


def implied_by_frozen(found: Rows, batch: Any) -> dict[str, Tensor]:
    """Return the inputs of a forward of a draft that only reads its target's KV, by name.

    A draft's position is the last one that the target has computed, at each of its steps.
    """
    if not found.rows:
        return {}
    totals = torch.tensor([row.cached for row in found.rows])
    return {
        "positions": totals - 1,
        "seq_lens": totals,
        "seq_lens_cpu": totals,
        "req_pool_indices": batch.req_pool_indices.clone(),  # A runner pads the batch itself.
    }


def implied_by_draft(found: Rows, mode: str, group: str) -> dict[str, Tensor]:
    """Return the inputs of a draft's forward that its rows imply, by name."""
    if mode != "draft decode":
        inputs = implied(found, mode, group)
        inputs.pop("input_ids", None)  # Which of them a request keeps is known to its batch.
        return inputs
    rows = found.rows
    starts = {at: row.cached for at, row in zip(found.batch_rows, rows, strict=True)}
    return {
        "positions": torch.tensor([row.cached for row in rows]),
        "out_cache_loc": torch.cat([row.slots[group][row.cached :] for row in rows]),
        "seq_lens": torch.tensor(list(starts.values())),
    }
