"""The forwards of a draft model: their rows, and the inputs that the rows imply.

The draft's KV at a position has the location of the target's. With EAGLE it also depends on the
next token. In a graph of draft steps, each step writes one position per branch, except the last
one, which only samples. Their tokens are unknown before the replay.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sglang.pools import Pool
from paritybit.connectors.sglang.rows import (
    EXTENDS,
    PREFILLS,
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


def reads_ahead(runner: Any) -> bool:
    """Return whether the draft model of a runner gets, at each position, the next token."""
    algorithm = getattr(runner, "spec_algorithm", None)
    layers = getattr(getattr(runner, "server_args", None), "enable_multi_layer_eagle", False)
    return algorithm is not None and bool(algorithm.is_eagle()) and not layers


def draft_forward_of(
    batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor, runner: Any, ahead: bool = False
) -> tuple[Forward, Rows]:
    """Return the facts of a forward of a draft model. `runner` may replay a graph of steps."""
    mode, topk = mode_of(batch), getattr(runner, "topk", None)
    count = getattr(runner, "speculative_num_steps", None)
    if mode in (*PREFILLS, *EXTENDS):
        found = extended(batch, requests, pool, table, ahead)
    elif mode == "decode" and topk is not None and count is not None:
        found = stepped(batch, requests, pool, table, (int(topk), int(count)), ahead)
    else:
        raise NotRecognisedError(f"a draft's forward with the mode {mode}")
    return Forward(f"draft {mode}", tuple(found.rows), model="draft "), found


def extended(batch: Any, requests: Sequence[Any], pool: Pool, table: Tensor, ahead: bool) -> Rows:
    """Return the rows of a batch whose sequence lengths include the tokens that it computes."""
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
    batch: Any,
    requests: Sequence[Any],
    pool: Pool,
    table: Tensor,
    size: tuple[int, int],
    ahead: bool,
) -> Rows:
    """Return the rows of a graph of draft steps: one per branch. `size` has branches and steps."""
    found, (topk, count) = Rows(), size
    totals = batch.seq_lens.tolist()
    branches = batch.out_cache_loc.view(len(totals), topk, -1)
    columns = branches.shape[2]
    held = slots_of(batch, pool, table, max(totals) + columns)
    new = {name: slots.cpu() for name, slots in pool.slots(branches).items()}
    for index, request in enumerate(requests_of(batch, requests, mode_of(batch))):
        total = totals[index]
        for branch in range(topk):
            # A chain must use the slots of its next positions, even if the batch has others.
            slots = {
                name: block[index, : total + columns]
                if topk == 1
                else torch.cat((block[index, :total], new[name][index, branch].to(block)))
                for name, block in held.items()
            }
            row = row_of(request, total, columns, slots, ahead)
            found.add(index, replace(row, spare=columns - count + 1))
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
    """Return, for each row, how many of its computed ids belong to the tokens of its request.

    The ids of draft steps and of rejected drafts do not. After a chunk of a prompt, the last id is
    the sampled token, unless the release passes the next token of the prompt (`names_next`). It
    never does so for tokens that the request generated before a retraction. For images, models get
    other ids than the request has.
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


def implied_by_draft(found: Rows, mode: str, group: str) -> dict[str, Tensor]:
    """Return the inputs of a draft's forward that its rows imply, by name."""
    if mode != "draft decode":
        return implied(found, mode, group)
    rows = found.rows
    starts = {at: row.cached for at, row in zip(found.batch_rows, rows, strict=True)}
    return {
        "positions": torch.tensor([row.cached for row in rows]),
        "out_cache_loc": torch.cat([row.slots[group][row.cached :] for row in rows]),
        "seq_lens": torch.tensor(list(starts.values())),
    }
