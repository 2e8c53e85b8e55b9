"""The forwards of a draft model: their rows, and the inputs that the rows imply.

The draft model first computes the tokens that the target computed, each with the hidden state of
the position before it, so its KV also depends on the next token. Then it computes one draft per
step. The KV of drafts is reported with a token that no request has, and is written again later.
"""

from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.vllm.pools import DRAFTED, EngineGroup, Pool
from paritybit.connectors.vllm.requests import padded, space_of
from paritybit.connectors.vllm.speculation import Progress
from paritybit.watch.facts import Forward, IndexList, Row, StaticInput

NOBODYS = -1
"""Stands for the token of an unknown or a rejected draft."""


class Turn:
    """What a draft model computes after a forward of the target.

    - `names`: the requests of the batch in order.
    - `owner`: the object of the engine that proposes drafts.
    - `names_next`: after a chunk of a prompt, the model gets the next token of the prompt.
    - `step`: the number of steps that have begun.
    """

    step = 0
    stepping = False

    def __init__(
        self, engine: Any, pool: Pool, draft: EngineGroup, names: list[str], owner: Any
    ) -> None:
        self.names, self.owner, self.page, self.draft = names, owner, pool.page, draft
        self.of, self.counts = engine.scheduler.requests, engine.account.counts
        self.progress: list[Progress] = [engine.account.requests[name] for name in names]
        self.tables = [engine.requests.of(name, pool).slots[draft.number] for name in names]
        # The older runner passes the last token of a prompt in place of the next one.
        self.names_next = not hasattr(owner, "drafter")

    @property
    def drafts(self) -> int:
        """The number of drafts per request."""
        return int(self.owner.vllm_config.speculative_config.num_speculative_tokens)

    @property
    def longest(self) -> int:
        """The largest number of tokens of a request."""
        return int(self.owner.vllm_config.model_config.max_model_len)

    @property
    def done(self) -> list[int]:
        """The number of tokens of each request whose KV the target has computed."""
        return [mine.computed for mine in self.progress]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The number of positions that the first forward computes per request, and the first."""
        counts = [self.counts[name] for name in self.names]
        pairs = zip(self.progress, counts, strict=True)
        return [(count, mine.computed - (count - mine.rejected)) for mine, count in pairs]

    def extended(self) -> Forward:
        """Return the forward that computes the tokens of the batch."""
        rows = [
            self.row(at, first, count, mine.rejected)
            for at, (mine, (count, first)) in enumerate(zip(self.progress, self.spans, strict=True))
        ]
        return Forward("draft extend", tuple(rows), model="draft ")

    def stepped(self) -> Forward:
        """Return the forward of the steps that compute all drafts but the first."""
        rows = [
            self.row(at, done, max(0, min(self.drafts - 1, self.longest - done)), 0)
            for at, done in enumerate(self.done)
        ]
        return Forward("draft steps", tuple(rows), model="draft ")

    def row(self, at: int, cached: int, computed: int, spare: int) -> Row:
        """Return the row of a request."""
        mine, name, end = self.progress[at], self.names[at], cached + computed
        known = mine.tokens[1 : mine.computed + 1]
        return Row(
            request=name,
            tokens=[*known, *[NOBODYS] * max(0, end - len(known))],
            cached=cached,
            computed=computed,
            slots={DRAFTED: padded(self.tables[at][:end], end)},
            space=f"draft {space_of(self.of[name])} after {mine.tokens[0]}",
            spare=spare,
            window=self.draft.window,
        )

    def inputs(self, ids: Tensor, positions: Tensor, mapping: Tensor | None) -> list[StaticInput]:
        """Return the inputs of the first forward, except those of rejected drafts."""
        tokens, where, slots, kept = list[int](), list[int](), list[int](), list[bool]()
        for mine, table, (_, first) in zip(self.progress, self.tables, self.spans, strict=True):
            tokens += mine.tokens[first + 1 : mine.computed + 1]
            where += range(first, mine.computed)
            kept += [True] * (mine.computed - first - 1)
            kept.append(self.names_next or mine.computed == len(mine.tokens) - 1)
            slots += padded(table[: mine.computed], mine.computed)[first:].tolist()
        at, known = self.places(ids), torch.tensor(kept)
        right = torch.tensor(tokens)[known]
        found = [
            expected("input_ids (draft)", ids[at[known.to(at.device)]], right, ids),
            expected("positions (draft)", positions[at], where, positions),
        ]
        return found if mapping is None else [*found, self.mapped(mapping, mapping[at], slots)]

    def mapped(self, mapping: Tensor, held: Tensor, slots: list[int]) -> StaticInput:
        """Return a mapping of slots, with those that tokens must be written to."""
        found = expected("slot_mapping (draft)", held, slots, mapping)
        found.writes = DRAFTED
        return found

    def places(self, given: Tensor) -> Tensor:
        """Return the indices of the tokens in an input, except those of rejected drafts."""
        places, begin = list[int](), 0
        for done, (count, first) in zip(self.done, self.spans, strict=True):
            places += range(begin, begin + done - first)
            begin += count
        return torch.tensor(places, dtype=torch.int64, device=given.device)

    def fits(self, step: int) -> bool:
        """Return whether every request has a position for its draft of a step."""
        return all(done + step <= self.longest for done in self.done)

    def step_inputs(
        self, lengths: Tensor, positions: Tensor, mapping: Tensor | None = None
    ) -> list[StaticInput]:
        """Return the inputs of the current step, or of the first one if none has begun."""
        rows = len(self.names)
        ends = [done + max(1, self.step) for done in self.done]
        last = [end - 1 for end in ends]
        found = [
            expected("seq_lens (draft)", lengths[:rows], ends, lengths),
            expected("positions (draft)", positions[:rows], last, positions),
        ]
        if mapping is None:
            return found
        pairs = zip(self.tables, ends, strict=True)
        slots = [int(padded(table[:end], end)[-1]) for table, end in pairs]
        return [*found, self.mapped(mapping, mapping[:rows], slots)]

    def lists(self, table: Tensor, lengths: Tensor) -> IndexList:
        """Return the block table of the draft model, with padded rows last."""
        return IndexList(
            "block_table (draft)",
            DRAFTED,
            table.flatten(),
            torch.arange(len(table)) * table.shape[1],
            -(-lengths[: len(table)].long() // self.page),
            computed=self.step or None,
            exact=False,
            page=self.page,
        )

    def whole_table(self, table: Tensor) -> IndexList:
        """Return the block table of all steps."""
        ends = torch.tensor([done + self.drafts - 1 for done in self.done])
        return self.lists(table[: len(ends)], ends)


def draft_layers(runner: Any) -> set[str]:
    """Return the names of the attention layers of a runner's draft model, if it has one."""
    older = getattr(getattr(runner, "drafter", None), "_draft_attn_layer_names", ())
    return set(older or getattr(getattr(runner, "speculator", None), "draft_attn_layer_names", ()))
