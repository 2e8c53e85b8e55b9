"""An engine's runner over KV in blocks, and one with a drafter, as the engines here drive them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, ModelConfig, Role
from paritybit.reference.model import Model, Output
from paritybit.reference.ops import Ops
from torch import Tensor


@dataclass(frozen=True)
class Ran:
    """What a forward gave: the engine's own batch, the output of its live rows, its padded tokens.

    `starts` is where the tokens of each request begin in it, which the engine's own buffer may
    hold no more when it is told what they sampled.
    """

    batch: Any
    output: Output
    tokens: int
    starts: Tensor


class PagedRunner(ABC):
    """A runner of batches of `mode`: of as many tokens of each request as `drafts`, if any.

    A replay is of so many `graphs`; a bucket is of requests, of tokens for graphs in `pieces`.
    `roles` are those of `models` that have KV.
    """

    roles: tuple[Role, ...] = (Role.TARGET,)
    pieces = False
    graphs = 1

    def __init__(self, models: Mapping[Role, Model], mode: Mode, ops: Ops) -> None:
        self.models, self.mode, self.ops = models, mode, ops
        self.model = models[Role.TARGET]
        self.device = self.model.embedding.device
        self.drafts = 0 if mode in {Mode.DECODE, Mode.EXTEND} else SPECULATION.draft_tokens
        self.tokens_per_request = max(self.drafts, 1)

    def captured(self, buckets: Iterable[int]) -> list[int]:
        """Return the tokens of each graph of some buckets.

        What proposes runs one token of each request after the first forward.
        """
        widths = {self.tokens_per_request} | ({1} if self.mode is Mode.DRAFT else set())
        return sorted({bucket * width for bucket in buckets for width in widths})

    @property
    def cached(self) -> ModelConfig:
        """The configuration of all layers that have KV, the draft model's last."""
        layers = [layer for role in self.roles for layer in self.models[role].config.layers]
        return replace(self.model.config, layers=tuple(layers))

    @property
    @abstractmethod
    def clears_below_windows(self) -> bool:
        """Whether rows of a block table are 0 below a window."""

    @abstractmethod
    def run(self, told: Any, *, verifies: bool) -> Ran:
        """Run what the engine is told to, by replay where it can; return what it gave."""

    @abstractmethod
    def settle(
        self, batch: Any, starts: Tensor, sampled: Sequence[Sequence[int]], rejected: list[int]
    ) -> None:
        """Let the engine follow a forward: what each request sampled, and how much it rejected."""

    @abstractmethod
    def statics(self) -> dict[str, Tensor]:
        """Return every static buffer that a replay reads, by name."""

    @abstractmethod
    def clear(self) -> None:
        """Let the engine's tables know no request, as they were just made."""


@dataclass(frozen=True)
class Verified:
    """What the target made of a request: its tokens from `begin` on, and the one that is next.

    `tokens` are accepted + 1, `hidden` is [accepted, H]; `rejected` more of its tokens ran. The
    target's KV is there for `length` tokens.
    """

    serial: int
    begin: int
    length: int
    tokens: Sequence[int]
    hidden: Tensor
    rejected: int

    @property
    def end(self) -> int:
        """Up to which of its tokens it was accepted."""
        return self.begin + len(self.hidden)


class PagedDrafter(PagedRunner):
    """A runner with its drafter: of graphs on trial, those of so many tokens were `replayed`."""

    roles = tuple(Role)
    replayed: list[int]

    @abstractmethod
    def rows_of(self, targets: Sequence[Verified]) -> list[int]:
        """Return the rows of requests in the engine's tables."""

    @abstractmethod
    def propose(
        self, told: Any, targets: Sequence[Verified], steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let the drafter follow the target and draft: tokens, what they are from, and its logits.

        They are int64 [requests, steps], [steps, requests, H] and [steps, requests, vocab].
        """


def accepted(targets: Iterable[Verified]) -> tuple[list[int], list[int], Tensor]:
    """Return where the tokens that were accepted lie in a batch of all that ran, those, and states.

    The hidden states are [accepted, H].
    """
    places, tokens, first = list[int](), list[int](), 0
    for one in targets:
        places += range(first, first + len(one.hidden))
        tokens += one.tokens[:-1]
        first += len(one.hidden) + one.rejected
    return places, tokens, torch.cat([one.hidden for one in targets])
