"""What a draft of the engine's proposes, by the reference's names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import Output
from torch import Tensor

ORGANIZE = "organize_draft_results"
"""The engine's function that picks the best of all candidates, once the last are found."""


@dataclass(frozen=True)
class Candidates:
    """All candidates of a draft, a tensor of each step: what the engine picks its tree from.

    Step s has `scores` [B, .., topk], `tokens` [B, ..] and `parents` [B, ..], as the engine
    numbers all candidates one after the other.
    """

    scores: Sequence[Tensor]
    tokens: Sequence[Tensor]
    parents: Sequence[Tensor]


@contextmanager
def watched(draft_forward: Any) -> Iterator[list[Candidates]]:
    """Keep what a draft of the engine's picks its tree from, while it runs."""
    names = draft_forward.__globals__
    organize, found = names[ORGANIZE], list[Candidates]()

    def kept(scores: Any, tokens: Any, parents: Any, *rest: Any, **named: Any) -> Any:
        found.append(Candidates(tuple(scores), tuple(tokens), tuple(parents)))
        return organize(scores, tokens, parents, *rest, **named)

    names[ORGANIZE] = kept
    try:
        yield found
    finally:
        names[ORGANIZE] = organize


def proposed(candidates: Candidates, tree: Sequence[Tensor], requests: int) -> Output:
    """Return what the first `requests` requests were proposed: see `reference.speculative`.

    `tree` is the engine's result: parents and the places of the best candidates, in ascending
    order, and their tokens; what it says of those goes before what the candidates say. Raises
    RuntimeError where others are better.
    """
    parents, best, drafted = (part[:requests] for part in tree)
    scores = torch.cat([part.flatten(1) for part in candidates.scores], 1)[:requests]
    tokens = torch.cat([part.flatten(1) for part in candidates.tokens], 1)[:requests]
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, value=True)
    others = scores.masked_fill(kept, -torch.inf).amax(1, keepdim=True)
    if not (scores.gather(1, best) >= others).all() or not (best.diff(dim=1) > 0).all():
        raise RuntimeError("the engine's tree does not contain its most likely candidates")
    topk = SPECULATION.topk
    followed = torch.cat((parents[:, topk + 1 :], candidates.parents[-1][:requests]), 1)
    step = torch.arange(SPECULATION.forwards, device=scores.device).repeat_interleave(topk)
    return {
        "scores": scores,
        "tokens": tokens.scatter(1, best, drafted),
        "chosen": followed - topk - step * topk**2,
    }
