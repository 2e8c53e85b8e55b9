"""The requests of an engine, as the scheduler announces them to its workers, and their drafts.

paritybit checks the state that a worker keeps of a request, and the scheduler's and the worker's
counts of accepted drafts, so it uses neither.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import Content, Places, expected, shown
from paritybit.connectors.vllm.pools import VllmPool
from paritybit.connectors.vllm.scheduling import FACTS, Message
from paritybit.watch.facts import Forward, Row, StaticInput

LAST = 16
"""The number of last tokens of a request that are compared."""

METHODS = {"ngram": False, "eagle": True}
"""The supported methods of speculation, and whether each has a draft model."""


@dataclass
class Progress:
    """The progress of a request after its last sampling.

    - `computed`: the number of tokens with valid KV.
    - `accepted`, `rejected`: the numbers of such drafts in its last forward.
    - `proposed`: the drafts that may follow its tokens, if they are known.
    - `begun`: the number of tokens with which it began, or began again.
    """

    tokens: list[int]
    computed: int
    accepted: int = 0
    rejected: int = 0
    proposed: list[int] | None = None
    begun: int = 0


class Account:
    """All requests that a worker computes. If it is `ahead`, it counts all drafts as accepted."""

    def __init__(self, ahead: bool) -> None:
        self.ahead = ahead
        self.requests: dict[str, Progress] = {}
        self.counts: Mapping[str, int] = {}
        self.said: dict[str, int] = {}
        """The computed tokens that the scheduler assumes for older requests."""

    def follow(
        self, output: Any, begun: Mapping[str, int], tokens: Mapping[str, list[int]]
    ) -> None:
        """Read the output of the scheduler. `begun` has the computed tokens of new requests."""
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        self.counts = output.num_scheduled_tokens
        for name, computed in begun.items():
            self.requests[name] = Progress(tokens[name], computed, begun=len(tokens[name]))
        cached = output.scheduled_cached_reqs
        known = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        self.said = {name: computed for name, computed in known if name not in begun}

    def row(self, name: str, ids: Sequence[int] | None) -> tuple[int, list[int | None]]:
        """Return the number of computed tokens of a request, and all tokens that are known."""
        mine, count = self.requests[name], self.counts[name]
        end = mine.computed + count
        drafts = () if ids is None else ids[count - max(0, end - len(mine.tokens)) :]
        return mine.computed, [*mine.tokens[:end], *drafts]

    def compared(
        self, of: Mapping[str, "Request"], ids: Mapping[str, Sequence[int]]
    ) -> list[StaticInput]:
        """Return the scheduler's state of requests, and the drafts that the model gets."""
        held, right = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for name, said in self.said.items():
            mine, told = self.requests[name], of[name].all_token_ids
            late = self.ahead and said != mine.computed
            held["num_computed_tokens"].append(said)
            right["num_computed_tokens"].append(mine.computed + late * mine.rejected)
            first = max(0, len(mine.tokens) - LAST)
            last = min(len(told), len(mine.tokens)) if self.ahead else len(mine.tokens)
            held["all_token_ids"] += told[first:]
            right["all_token_ids"] += mine.tokens[first:last]
        for name, row in ids.items():
            mine = self.requests[name]
            given = row[len(mine.tokens) - mine.computed :]
            proposed = given if mine.proposed is None else mine.proposed
            pairs = [pair for pair in zip(given, proposed, strict=False) if pair[0] >= 0]
            held["drafts"] += [one for one, _ in pairs]
            right["drafts"] += [one for _, one in pairs]
        return [expected(name, torch.tensor(one).long(), right[name]) for name, one in held.items()]

    def sampled(self, names: Sequence[str], made: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Record sampled tokens. Returns the numbers of verified and of accepted drafts."""
        drafts = accepted = 0
        for name, tokens in zip(names, made, strict=True):
            if name not in self.requests or name not in self.counts:
                continue
            mine = self.requests[name]
            end = mine.computed + self.counts[name]
            verified = max(0, end - len(mine.tokens))
            mine.proposed, mine.accepted, mine.rejected = None, 0, 0
            if end < len(mine.tokens) or not tokens:
                mine.computed = min(end, len(mine.tokens))
                continue
            mine.accepted = len(tokens) - 1
            mine.rejected = verified - mine.accepted
            mine.computed = end - mine.rejected
            mine.tokens += tokens
            drafts, accepted = drafts + verified, accepted + mine.accepted
        return drafts, accepted

    def proposed(self, names: Sequence[str], drafts: Any) -> None:
        """Record the drafts that were proposed: a tensor [requests, drafts], or lists."""
        given = drafts.tolist() if isinstance(drafts, Tensor) else drafts
        for name, mine in zip(names, given, strict=True):
            if name in self.requests:
                self.requests[name].proposed = list(mine)


def unjudged(config: Any, drafted: bool) -> list[str]:
    """Return the settings of an engine's speculation that are not supported."""
    speculation = config.speculative_config
    if speculation is None:
        return []
    if METHODS.get(speculation.method) != drafted:
        return [f"speculation by {speculation.method}"]
    # The draft KV in the last block of a shared prefix then belongs to another next token.
    drops = not speculation.disable_eagle_block_drop
    return [] if drops else ["speculation with disable_eagle_block_drop"]


def tokens_of(made: Tensor, counts: Tensor | None = None) -> list[list[int]]:
    """Return the sampled tokens of each request. The newer runner also counts them."""
    if counts is None:
        return [[token for token in row if token >= 0] for row in made.tolist()]
    return [row[:count] for row, count in zip(made.tolist(), counts.tolist(), strict=True)]


@dataclass
class Request:
    """One request: its blocks per group, how many tokens are computed, and what FACTS name."""

    blocks: list[list[int]]
    computed: int
    slots: list[Tensor] = field(default_factory=list)
    """The slots of its blocks per group, computed on first use."""
    states: dict[int, list[int]] = field(default_factory=dict)
    """The checksums of its states after its last forward, by their numbers of tokens."""
    all_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    cache_salt: str | None = None
    lora_request: Any = None
    sampling_params: Any = None
    contents: Sequence[Content] = ()
    places: Places | None = None
    """The positions of its prompt, if these have several dimensions."""
    images: Sequence[tuple[int, int, str]] = ()
    """The first position of each image in its prompt, its length, and the engine's name of it."""
    adapter: str = ""
    """The content of its adapter when it was first computed. The engine may replace it later."""


@dataclass
class Requests:
    """All requests that were announced to a worker and have not ended."""

    known: dict[str, Request] = field(default_factory=dict)

    def follow(self, output: Any, message: Message) -> dict[str, int]:
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
                request.states = {}
            elif more is not None:
                for mine, numbers in zip(request.blocks, more, strict=True):
                    mine.extend(numbers)
            if more is not None:
                request.slots = []
        for name, facts in message["requests"].items():
            vars(self.known[name]).update(zip((*FACTS, "contents"), facts, strict=True))
        for name, (first, tokens) in message["tokens"].items():
            self.known[name].all_token_ids[first:] = tokens
        return begun

    def of(self, name: str, pool: VllmPool) -> Request:
        """Return a request, and compute its slots if necessary."""
        request = self.known[name]
        if not request.slots:
            request.slots = [pool.of_positions(blocks) for blocks in request.blocks]
        return request

    def since(self, firsts: Mapping[str, int], pool: VllmPool, numbers: Sequence[int]) -> Tensor:
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
        pool: VllmPool,
        account: Account | None = None,
        ids: Mapping[str, Sequence[int]] | None = None,
    ) -> Forward:
        """Return the facts of a forward. The rows of the first group come first.

        With drafts, their tokens are the last of the `ids` that the model gets for a request.
        """
        counts = output.num_scheduled_tokens
        rows, owned = list[Row](), None
        for place, group in enumerate(pool.targets):
            for name in names:
                request, computed = self.of(name, pool), counts[name]
                cached, tokens = request.computed, list[int | None](request.all_token_ids)
                if account is not None:
                    cached, tokens = account.row(name, (ids or {}).get(name))
                tokens, end = shown(tokens, request.contents), cached + computed
                slots = padded(request.slots[group.number][:end], end)
                rows.append(
                    Row(
                        request=f"{name} in group {group.number}" if place else name,
                        tokens=tokens[:end],
                        cached=cached,
                        computed=computed,
                        slots=dict.fromkeys(group.names, slots),
                        space=f"{place} {space_of(request)}",
                        window=group.window,
                        frees=pool.frees,
                    )
                )
        drafts = {name: len(output.scheduled_spec_decode_tokens.get(name, ())) for name in names}
        kind = "verify" if any(drafts.values()) else "decode"
        if any(counts[name] - drafts[name] > 1 for name in names):
            kind = "prefill"  # Of a part of a prompt at least.
        if pool.states:
            parts = [row.slots[name][row.cached :] for row in rows for name in row.slots]
            for states in pool.states:
                for name, row in zip(names, rows, strict=False):
                    slots, span = (
                        self.of(name, pool).slots[states.number],
                        (row.cached, row.computed),
                    )
                    first = states.first(sum(span))
                    inside = column_inside(*span, states.tokens) is not None
                    # It starts from the state after the last accepted draft.
                    accepted = 0 if account is None else account.requests[name].accepted
                    last = first + 1 + max(drafts[name], accepted)
                    parts.append(slots[pool.page * (first - inside) : pool.page * last])
            owned = {name: torch.cat(parts) for name in pool.names}
        return Forward(kind, tuple(rows), owned, repeats=len(pool.targets))


def column_inside(cached: int, computed: int, page: int) -> int | None:
    """Return the column of the block that may get a state inside of a prefill, or None.

    It is the one before that of the last state, if it has none from before.
    """
    column = -(-(cached + computed) // page) - 2
    return column if column > (cached - 1) // page else None


def padded(slots: Tensor, size: int, value: int = -1) -> Tensor:
    """Pad slots to `size`, with -1 for positions without a slot."""
    if len(slots) == size:
        return slots
    return torch.nn.functional.pad(slots, (0, size - len(slots)), value=value)


def space_of(request: Request) -> str:
    """Return everything except tokens that the KV of a request depends on."""
    adapter = request.adapter or getattr(request.lora_request, "lora_int_id", "")
    return f"{adapter} {request.cache_salt or ''}"
