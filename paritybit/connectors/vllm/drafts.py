"""The forwards of a draft model: their rows, and the inputs that the rows imply.

The draft model first computes the tokens that the target computed, each with the hidden state of
the position before it. Its KV at a position therefore depends on the tokens up to the next
position. Then it computes one draft per step; the last draft is only sampled. The drafts are
unknown before the forward, so the connector reports their KV with a token that no request has. The
draft model writes this KV again after the target has verified the drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.vllm.pools import DRAFTED, Draft, Pool
from paritybit.connectors.vllm.requests import Requests, padded, space_of
from paritybit.connectors.vllm.speculation import Account
from paritybit.watch.facts import Forward, IndexList, Row, StaticInput

NOBODYS = -1
"""Stands for the token of an unknown or a rejected draft."""


@dataclass
class Turn:
    """What a draft model computes after a forward of the target.

    - `names`, `of`: the requests of the batch in order, and the scheduler's requests by name.
    - `draft`: the group of its layers.
    - `drafts`: the number of drafts per request.
    - `longest`: the largest number of tokens of a request.
    - `names_next`: after a chunk of a prompt, the model gets the next token of the prompt.
    - `step`: the number of steps that have begun.
    - `owner`: the object of the engine that proposes drafts.
    """

    names: list[str]
    account: Account
    requests: Requests
    of: Mapping[str, Any]
    pool: Pool
    draft: Draft
    drafts: int
    longest: int
    names_next: bool = True
    step: int = 0
    stepping: bool = False
    owner: Any = None

    def done(self, name: str) -> int:
        """Return the number of tokens of a request whose KV the target has computed."""
        return self.account.requests[name].computed

    def given(self, name: str) -> tuple[int, int]:
        """Return how many positions the first forward computes for a request, and the first one."""
        mine, count = self.account.requests[name], self.account.counts[name]
        return count, mine.computed - (count - mine.rejected)

    def slots(self, name: str, end: int) -> Tensor:
        """Return the slots of the first positions of a request in the group of the draft model."""
        return padded(self.requests.of(name, self.pool).slots[self.draft.number][:end], end)

    def extended(self) -> Forward:
        """Return the forward that computes the tokens of the batch."""
        rows = []
        for name in self.names:
            count, first = self.given(name)
            rows.append(self.row(name, first, count, self.account.requests[name].rejected))
        return Forward("draft extend", tuple(rows), model="draft ")

    def stepped(self) -> Forward:
        """Return the forward of the steps that compute all drafts but the first."""
        rows = []
        for name in self.names:
            done = self.done(name)
            count = max(0, min(self.drafts - 1, self.longest - done))
            rows.append(self.row(name, done, count, 0))
        return Forward("draft steps", tuple(rows), model="draft ")

    def row(self, name: str, cached: int, computed: int, spare: int) -> Row:
        """Return the row of a request."""
        mine, end = self.account.requests[name], cached + computed
        known = mine.tokens[1 : mine.computed + 1]
        return Row(
            request=name,
            tokens=[*known, *[NOBODYS] * max(0, end - len(known))],
            cached=cached,
            computed=computed,
            slots={DRAFTED: self.slots(name, end)},
            space=f"draft {space_of(self.of[name])} after {mine.tokens[0]}",
            spare=spare,
            window=self.draft.window,
        )

    def inputs(self, ids: Tensor, positions: Tensor, mapping: Tensor | None) -> list[StaticInput]:
        """Return the inputs of the first forward, except those of rejected drafts."""
        tokens, where, slots, kept = list[int](), list[int](), list[int](), list[bool]()
        for name in self.names:
            _, first = self.given(name)
            mine = self.account.requests[name]
            tokens += mine.tokens[first + 1 : mine.computed + 1]
            where += range(first, mine.computed)
            kept += [True] * (mine.computed - first - 1)
            kept.append(self.names_next or mine.computed == len(mine.tokens) - 1)
            slots += self.slots(name, mine.computed)[first:].tolist()
        at, known = self.places(ids), torch.tensor(kept)
        right = torch.tensor(tokens)[known]
        found = [
            expected("input_ids (draft)", ids[at[known.to(at.device)]], right, ids),
            expected("positions (draft)", positions[at], where, positions),
        ]
        if mapping is not None:
            found.append(expected("slot_mapping (draft)", mapping[at], slots, mapping))
            found[-1].writes = DRAFTED
        return found

    def places(self, given: Tensor) -> Tensor:
        """Return the indices of the tokens in an input, except those of rejected drafts."""
        places, begin = list[int](), 0
        for name in self.names:
            count, first = self.given(name)
            places += range(begin, begin + self.done(name) - first)
            begin += count
        return torch.tensor(places, dtype=torch.int64, device=given.device)

    def states(self, held: Tensor, target: Tensor) -> list[StaticInput]:
        """Return the hidden states that the draft model gets, with those of the target."""
        if held.ndim != 2 or held.shape[1:] != target.shape[1:]:
            return []
        at = self.places(held)
        return [expected("hidden_states (draft)", held[at], target[at], held)]

    def fits(self, step: int) -> bool:
        """Return whether every request has a position for its draft of a step."""
        return all(self.done(name) + step <= self.longest for name in self.names)

    def step_inputs(
        self, lengths: Tensor, positions: Tensor, mapping: Tensor | None = None
    ) -> list[StaticInput]:
        """Return the inputs of the current step, or of the first one if none has begun."""
        rows, step = len(self.names), max(1, self.step)
        ends = [self.done(name) + step for name in self.names]
        last = [end - 1 for end in ends]
        found = [
            expected("seq_lens (draft)", lengths[:rows], ends, lengths),
            expected("positions (draft)", positions[:rows], last, positions),
        ]
        if mapping is not None:
            pairs = zip(self.names, ends, strict=True)
            slots = [int(self.slots(name, end)[-1]) for name, end in pairs]
            found.append(expected("slot_mapping (draft)", mapping[:rows], slots, mapping))
            found[-1].writes = DRAFTED
        return found

    def lists(self, table: Tensor, lengths: Tensor) -> IndexList:
        """Return the block table of the draft model, with padded rows last."""
        return IndexList(
            "block_table (draft)",
            DRAFTED,
            table.flatten(),
            torch.arange(len(table)) * table.shape[1],
            -(-lengths[: len(table)].long() // self.pool.page),
            computed=self.step or None,
            exact=False,
            page=self.pool.page,
        )

    def whole_table(self, table: Tensor) -> IndexList:
        """Return the block table of all steps."""
        rows = len(self.names)
        ends = torch.tensor([self.done(name) + self.drafts - 1 for name in self.names])
        return self.lists(table[:rows], ends)


def draft_layers(runner: Any) -> set[str]:
    """Return the names of the attention layers of a runner's draft model, if it has one."""
    older = getattr(getattr(runner, "drafter", None), "_draft_attn_layer_names", ())
    return set(older or getattr(getattr(runner, "speculator", None), "draft_attn_layer_names", ()))
