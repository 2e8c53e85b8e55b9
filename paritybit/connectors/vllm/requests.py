"""The requests of an engine, as the scheduler announces them to its workers.

The state that a worker keeps of a request is not used, because paritybit checks this state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.vllm.pools import Pool
from paritybit.connectors.vllm.speculation import Account
from paritybit.watch.facts import Forward, Row


@dataclass
class Request:
    """One request: the numbers of its blocks per group, and how many tokens are computed."""

    blocks: list[list[int]]
    computed: int
    slots: list[Tensor] = field(default_factory=list)
    """The slots of its blocks per group, computed on first use."""


@dataclass
class Requests:
    """All requests that were announced to a worker and have not ended."""

    known: dict[str, Request] = field(default_factory=dict)

    def follow(self, output: Any) -> dict[str, int]:
        """Read the output of the scheduler. Returns what is computed of requests that begin."""
        begun = {new.req_id: int(new.num_computed_tokens) for new in output.scheduled_new_reqs}
        for name in output.finished_req_ids:
            self.known.pop(name, None)
        for new in output.scheduled_new_reqs:
            blocks = [list(numbers) for numbers in new.block_ids]
            self.known[new.req_id] = Request(blocks, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for place, name in enumerate(cached.req_ids):
            request, more = self.known[name], cached.new_block_ids[place]
            request.computed = cached.num_computed_tokens[place]
            if name in cached.resumed_req_ids:  # All of its blocks are new.
                begun[name] = request.computed
                request.blocks = [list(numbers) for numbers in more]
            elif more is not None:
                for mine, numbers in zip(request.blocks, more, strict=True):
                    mine.extend(numbers)
            if more is not None:
                request.slots = []
        return begun

    def of(self, name: str, pool: Pool) -> Request:
        """Return a request, and compute its slots if necessary."""
        request = self.known[name]
        if not request.slots:
            request.slots = [pool.slots(blocks) for blocks in request.blocks]
        return request

    def since(self, firsts: Mapping[str, int], pool: Pool, numbers: Sequence[int]) -> Tensor:
        """Return the slots of requests from a position of each on. `numbers` are the groups."""
        parts = [
            self.of(name, pool).slots[number][first:]
            for number in numbers
            for name, first in firsts.items()
        ]
        return torch.cat([torch.empty(0, dtype=torch.int64), *parts])

    def forward(
        self,
        output: Any,
        names: Sequence[str],
        of: Mapping[str, Any],
        pool: Pool,
        account: Account | None = None,
        ids: Mapping[str, Sequence[int]] | None = None,
    ) -> Forward:
        """Return the facts of a forward. The rows of the first group come first.

        With drafts, these are the last of the `ids` that the model gets for a request.
        """
        counts = output.num_scheduled_tokens
        rows = []
        for group in pool.targets:
            for name in names:
                request, computed = self.of(name, pool), counts[name]
                cached, tokens = request.computed, list(of[name].all_token_ids)
                if account is not None:
                    cached, tokens = account.row(name, (ids or {}).get(name))
                end = cached + computed
                slots = padded(request.slots[group.number][:end], end)
                rows.append(
                    Row(
                        request=name
                        if len(pool.targets) == 1
                        else f"{name} in group {group.number}",
                        tokens=tokens[:end] + [None] * (end - len(tokens)),
                        cached=cached,
                        computed=computed,
                        slots=dict.fromkeys(group.names, slots),
                        space=f"{group.number} {space_of(of[name])}",
                        window=group.window,
                        frees=pool.frees,
                    )
                )
        drafts = {name: len(output.scheduled_spec_decode_tokens.get(name, ())) for name in names}
        kind = "verify" if any(drafts.values()) else "decode"
        if any(counts[name] - drafts[name] > 1 for name in names):
            kind = "prefill"  # Of a part of a prompt at least.
        return Forward(kind, tuple(rows))


def padded(slots: Tensor, size: int) -> Tensor:
    """Pad slots to `size` with -1 for positions without a slot."""
    if len(slots) == size:
        return slots
    return torch.nn.functional.pad(slots, (0, size - len(slots)), value=-1)


def space_of(request: Any) -> str:
    """Return everything except tokens that the KV of a request depends on."""
    adapter = getattr(request.lora_request, "lora_int_id", "")
    return f"{adapter} {request.cache_salt or ''}"
