"""Follows which drafts are accepted, from the output of the sampler.

The scheduler and the model runner also count accepted drafts. Their counts are not used here: both
are compared with this one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import StaticInput

LAST = 16
"""The number of last tokens of a request that are compared."""

METHODS = {"ngram": False, "eagle": True}
"""The supported methods of speculation, and whether each has a draft model."""


@dataclass
class Progress:
    """The progress of a request after its last sampling.

    - `computed`: the number of tokens with valid KV.
    - `rejected`: the number of rejected drafts in its last forward.
    - `proposed`: the drafts that may follow its tokens, if they are known.
    """

    tokens: list[int]
    computed: int
    rejected: int = 0
    proposed: list[int] | None = None


@dataclass(frozen=True)
class Verified:
    """The number of drafts of a batch that were verified, and that were accepted."""

    drafts: int
    accepted: int


class Account:
    """All requests that a worker computes, and the progress of each.

    With asynchronous scheduling (`ahead`), the scheduler does not know the last tokens yet, and
    counts drafts as accepted until it does.
    """

    def __init__(self, ahead: bool) -> None:
        self.ahead = ahead
        self.requests: dict[str, Progress] = {}
        self.counts: Mapping[str, int] = {}
        self.said: dict[str, int] = {}

    def follow(self, output: Any, resumed: set[str], of: Mapping[str, Any]) -> None:
        """Read the output of the scheduler, before a forward, about requests that begin or resume.

        `of` are the scheduler's requests. For other requests, the number of computed tokens that
        the scheduler assumes is kept for comparison.
        """
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        self.counts = output.num_scheduled_tokens
        begun = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        known = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        begun |= {name: known.pop(name) for name in resumed}
        for name, computed in begun.items():
            self.requests[name] = Progress(list(of[name].all_token_ids), computed)
        self.said = known

    def row(self, name: str, ids: Sequence[int] | None) -> tuple[int, list[int | None]]:
        """Return the number of computed tokens of a request, and all tokens that are known.

        `ids` are the token ids that the model gets for the request. The last ones are its drafts.
        """
        mine, count = self.requests[name], self.counts[name]
        end = mine.computed + count
        drafts = max(0, end - len(mine.tokens))
        if ids is None:
            return mine.computed, [*mine.tokens[:end], *[None] * drafts]
        return mine.computed, [*mine.tokens[:end], *ids[count - drafts :]]

    def compared(
        self, of: Mapping[str, Any], ids: Mapping[str, Sequence[int]]
    ) -> list[StaticInput]:
        """Return the scheduler's state of requests and the drafts that the model gets, to compare.

        Each has its expected values.
        """
        given: dict[str, tuple[list[int], list[int]]] = {
            "num_computed_tokens": ([], []), "all_token_ids": ([], []), "drafts": ([], []),
        }  # fmt: skip
        for name, said in self.said.items():
            mine = self.requests[name]
            late = self.ahead and said != mine.computed
            add(given["num_computed_tokens"], [said], [mine.computed + late * mine.rejected])
            told = of[name].all_token_ids
            first = max(0, len(mine.tokens) - LAST)
            last = min(len(told), len(mine.tokens)) if self.ahead else len(mine.tokens)
            add(given["all_token_ids"], list(told[first:]), mine.tokens[first:last])
        for name, row in ids.items():
            mine = self.requests[name]
            drafts = row[len(mine.tokens) - mine.computed :]
            right = drafts if mine.proposed is None else mine.proposed
            pairs = [pair for pair in zip(drafts, right, strict=False) if pair[0] >= 0]
            add(given["drafts"], [held for held, _ in pairs], [one for _, one in pairs])
        return [
            StaticInput(
                name, torch.tensor(held, dtype=torch.int64), len(held), len(held),
                expected=torch.tensor(right, dtype=torch.int64),
            )
            for name, (held, right) in given.items()
        ]  # fmt: skip

    def sampled(self, names: Sequence[str], made: Sequence[Sequence[int]]) -> Verified:
        """Record the tokens that the sampler returned for each request of a batch.

        They are ignored for a prompt that is not complete.
        """
        drafts = accepted = 0
        for name, tokens in zip(names, made, strict=True):
            if name not in self.requests or name not in self.counts:
                continue
            mine = self.requests[name]
            end = mine.computed + self.counts[name]
            verified = max(0, end - len(mine.tokens))
            mine.proposed, mine.rejected = None, 0
            if end < len(mine.tokens) or not tokens:
                mine.computed = min(end, len(mine.tokens))
                continue
            mine.rejected = verified - (len(tokens) - 1)
            mine.computed = end - mine.rejected
            mine.tokens += tokens
            drafts, accepted = drafts + verified, accepted + len(tokens) - 1
        return Verified(drafts, accepted)

    def proposed(self, names: Sequence[str], drafts: Sequence[Sequence[int]]) -> None:
        """Record the drafts that were proposed for each request of a batch."""
        for name, mine in zip(names, drafts, strict=True):
            if name in self.requests:
                self.requests[name].proposed = list(mine)


def add(pair: tuple[list[int], list[int]], held: list[int], right: list[int]) -> None:
    """Append values and their expected values to a pair of lists."""
    pair[0].extend(held)
    pair[1].extend(right)


def account_of(config: Any) -> Account | None:
    """Return an account for an engine's configuration, or None without speculation."""
    if config.speculative_config is None:
        return None
    return Account(bool(getattr(config.scheduler_config, "async_scheduling", False)))


def unjudged(config: Any, drafted: bool) -> list[str]:
    """Return the settings of an engine's speculation that are not supported.

    `drafted` is True if layers of a draft model are known.
    """
    speculation = config.speculative_config
    if speculation is None:
        return []
    if METHODS.get(speculation.method) != drafted:
        return [f"speculation by {speculation.method}"]
    # The draft KV in the last block of a shared prefix then belongs to another next token.
    kept = getattr(speculation, "disable_eagle_block_drop", False)
    return ["speculation with disable_eagle_block_drop"] if kept else []


def kept(result: Any) -> Any:
    """Return a copy of what a sampler returned, for `tokens_of`. Waits for no device."""
    first, *rest = result if isinstance(result, tuple) else (result,)
    ids = first.sampled_token_ids
    mine = SimpleNamespace(sampled_token_ids=ids.clone() if isinstance(ids, Tensor) else ids)
    return (mine, *(one.clone() for one in rest[:1])) if rest else mine


def tokens_of(result: Any) -> list[list[int]]:
    """Return the sampled tokens of each request: accepted drafts, then one more token."""
    counts: Tensor | None = None
    if isinstance(result, tuple):  # The newer runner also returns the numbers of tokens.
        result, counts, *_ = result
    made = result.sampled_token_ids.tolist()
    if counts is not None:
        return [row[:count] for row, count in zip(made, counts.tolist(), strict=True)]
    return [[token for token in row if token >= 0] for row in made]


def drafts_of(result: Any) -> list[list[int]]:
    """Return proposed drafts, a tensor [requests, drafts] or lists, as lists."""
    return result.tolist() if isinstance(result, Tensor) else [list(row) for row in result]
