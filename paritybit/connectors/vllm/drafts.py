"""The forwards of a draft model: their rows, and what these imply.

A draft model takes up the tokens that the target computed, each with the hidden state of the
position before it. Its KV at a position so belongs to the tokens up to the next one. Then it
computes one draft per step, but the last, which is only sampled. What these drafts are is known to
nobody before: their KV is written for a token that no request has, and is written again once the
target has verified them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.vllm.pools import DRAFTED, Pool
from paritybit.connectors.vllm.requests import Requests, padded, space_of
from paritybit.connectors.vllm.speculation import Account
from paritybit.watch.facts import Forward, IndexList, Row, StaticInput

NOBODYS = -1
"""The token that stands for a draft, or for one that was rejected."""


@dataclass
class Turn:
    """What a draft model computes after a forward of the target, for the requests of its batch.

    `longest` is the most tokens that a request may have. `step` counts the steps that were begun.
    With `names_next`, the id at the end of a part of a prompt is that of the prompt's next token.
    """

    names: list[str]
    account: Account
    requests: Requests
    of: Mapping[str, Any]
    pool: Pool
    drafts: int
    longest: int
    names_next: bool = True
    step: int = 0
    stepping: bool = False

    def done(self, name: str) -> int:
        """Return how many tokens of a request have the KV of the target."""
        return self.account.requests[name].computed

    def given(self, name: str) -> tuple[int, int]:
        """Return how many positions a draft model takes up for a request, and its first one."""
        mine, count = self.account.requests[name], self.account.counts[name]
        return count, mine.computed - (count - mine.rejected)

    def slots(self, name: str, end: int) -> Tensor:
        """Return the slots of the first positions of a request in the group of the draft model."""
        assert self.pool.draft is not None
        return padded(self.requests.of(name, self.pool).slots[self.pool.draft.number][:end], end)

    def around(self, name: str) -> Tensor:
        """Return all slots of a request that a draft model may have written for a batch."""
        _, first = self.given(name)
        mine = self.requests.of(name, self.pool)
        assert self.pool.draft is not None
        return mine.slots[self.pool.draft.number][first:]

    def extended(self) -> Forward:
        """Return the forward that takes up the tokens of the batch.

        Those of rejected drafts need not be written.
        """
        rows = []
        for name in self.names:
            count, first = self.given(name)
            rejected = self.account.requests[name].rejected
            rows.append(self.row(name, first, count, rejected))
        return Forward("draft extend", tuple(rows), model="draft ")

    def stepped(self) -> Forward:
        """Return the steps that make all drafts but the first."""
        rows = []
        for name in self.names:
            done = self.done(name)
            count = max(0, min(self.drafts - 1, self.longest - done))
            rows.append(self.row(name, done, count, 0))
        return Forward("draft steps", tuple(rows), model="draft ")

    def row(self, name: str, cached: int, computed: int, spare: int) -> Row:
        """Return the row of a request."""
        assert self.pool.draft is not None
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
            window=self.pool.draft.window,
        )

    def inputs(self, ids: Tensor, positions: Tensor, mapping: Tensor | None) -> list[StaticInput]:
        """Return what the model is given to take up, without what it is given for rejected drafts.

        `mapping` has the slots that are written, for all tokens.
        """
        places, tokens, where, slots = list[int](), list[int](), list[int](), list[int]()
        kept, begin = list[bool](), 0
        for name in self.names:
            count, first = self.given(name)
            mine = self.account.requests[name]
            places += range(begin, begin + mine.computed - first)
            tokens += mine.tokens[first + 1 : mine.computed + 1]
            where += range(first, mine.computed)
            kept += [True] * (mine.computed - first - 1)
            kept.append(self.names_next or mine.computed == len(mine.tokens) - 1)
            slots += self.slots(name, mine.computed)[first:].tolist()
            begin += count
        at = torch.tensor(places, dtype=torch.int64, device=ids.device)
        known = torch.tensor(kept)
        right = torch.tensor(tokens)[known].tolist()
        found = [
            expected("input_ids", ids[at[known.to(at.device)]], right),
            expected("positions", positions[at], where),
        ]
        return found if mapping is None else [*found, expected("slot_mapping", mapping[at], slots)]

    @property
    def unnamed(self) -> int:
        """The parts of prompts after which the id is not that of the prompt's next token."""
        ends = (self.account.requests[name] for name in self.names)
        return 0 if self.names_next else sum(m.computed < len(m.tokens) - 1 for m in ends)

    def fits(self, step: int) -> bool:
        """Whether no request is so long that its draft of a step has no position."""
        return all(self.done(name) + step <= self.longest for name in self.names)

    def step_inputs(
        self, lengths: Tensor, positions: Tensor, mapping: Tensor | None = None
    ) -> list[StaticInput]:
        """Return what the model is given for a step: the next one, or the one under way."""
        rows, step = len(self.names), max(1, self.step)
        ends = [self.done(name) + step for name in self.names]
        found = [
            expected("seq_lens", lengths[:rows], ends),
            expected("positions", positions[:rows], [end - 1 for end in ends]),
        ]
        if mapping is not None:
            pairs = zip(self.names, ends, strict=True)
            slots = [int(self.slots(name, end)[-1]) for name, end in pairs]
            found.append(expected("slot_mapping", mapping[:rows], slots))
        return found

    def lists(self, table: Tensor, lengths: Tensor) -> IndexList:
        """Return the block table of a draft model's attention, padded rows last."""
        return IndexList(
            "draft block_table",
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


def expected(name: str, held: Tensor, right: Sequence[int]) -> StaticInput:
    """Return an input of a draft model with the values that it should have."""
    size = len(held)
    return StaticInput(
        f"draft {name}", held, size, size, expected=torch.tensor(right, dtype=torch.int64)
    )


def draft_layers(runner: Any) -> set[str]:
    """Return the attention layers of a runner's draft model; none if it has none."""
    for owner in (getattr(runner, "drafter", None), getattr(runner, "speculator", None)):
        for name in ("_draft_attn_layer_names", "draft_attn_layer_names"):
            if found := getattr(owner, name, None):
                return set(found)
    return set()
