"""Drafting: a few forwards of the draft model, each on the token that the one before proposed.

The caller decides where the forwards read and write KV.
"""

from collections.abc import Callable

import torch
from paritybit.reference.config import DRAFT_FORWARDS
from paritybit.reference.model import Output
from paritybit.reference.ops import Ops
from torch import Tensor

DraftForward = Callable[[int, Tensor, Tensor], Output]
"""Runs forward `step` on input_ids int64 [B] and hidden states [B, H]."""


def propose(
    ops: Ops, topk_p: Tensor, topk_index: Tensor, hidden_states: Tensor, forward: DraftForward
) -> Output:
    """Return the tokens that are proposed for B requests, int64 [B, DRAFT_STEPS].

    The first one is `topk_index` [B, 1]. `scores`, float32 of the same shape, are the probabilities
    of each token and those before it, from `topk_p` [B, 1] on.
    """
    scores, tokens, hidden = [topk_p], [topk_index], hidden_states
    for step in range(DRAFT_FORWARDS):
        output = likeliest(ops, forward(step, tokens[-1].reshape(-1), hidden))
        scores.append(scores[-1] * output["topk_p"])
        tokens.append(output["topk_index"])
        hidden = output["hidden"]
    return {"scores": torch.cat(scores, 1), "tokens": torch.cat(tokens, 1)}


def likeliest(ops: Ops, output: Output) -> Output:
    """Return `output` plus the likeliest next tokens: `topk_p`, `topk_index` [rows, 1]."""
    topk_p, topk_index = ops.likeliest(output["logits"])
    return {**output, "topk_p": topk_p, "topk_index": topk_index}


def count_accepted(drafts: list[int], greedy: list[int], at_least: int) -> int:
    """Return how many of a request's drafts are accepted.

    A draft is accepted if it is the target's greedy token after the token before it. `at_least` are
    accepted whatever the target's tokens are, as engines do to simulate an acceptance length.
    """
    wrong = (place for place, draft in enumerate(drafts) if draft != greedy[place])
    return max(next(wrong, len(drafts)), min(at_least, len(drafts)))
