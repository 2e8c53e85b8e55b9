"""Computes the log-likelihoods of an answer by the model alone, as one text without a cache."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from paritybit.drive.answers import Answer

NOISE = 1e-4
"""More than log-likelihoods differ by rounding, in float32."""


@torch.no_grad()
def difference(
    model: Any, answer: Answer, given: Sequence[float], sampling: Any, how: Mapping[str, Any]
) -> str | None:
    """Describe the first token whose log-likelihood is not `given`, or that is not the likeliest.

    If `how` has parameters of sampling, of the engine's class `sampling`, any token may be drawn.
    As rounding may move a token across a limit, limits vary.
    """
    tokens = torch.tensor(answer.tokens)[:, None]
    logits = model(torch.tensor([[*answer.prompt, *answer.tokens]])).logits
    scores = [logits[0, len(answer.prompt) - 1 : -1].float()]
    near = product((0, -1, 1), (0.0, -NOISE, NOISE)) if how else ()
    for rank, part in near:
        limits = {"top_k": max(1, how["top_k"] + rank), "top_p": min(1.0, how["top_p"] + part)}
        processors = model._get_logits_processor(sampling(do_sample=True, **{**how, **limits}))
        scores.append(processors(None, scores[0]))
    likely = [one.log_softmax(1) for one in scores[bool(how) :]]
    mine = [one.gather(1, tokens)[:, 0] for one in likely]
    right = mine if how else [likely[0].max(1).values]
    found = torch.tensor(given) if given else mine[0]
    wrong = ~torch.stack([(found - one).abs() <= NOISE for one in right]).any(0)
    if not bool(wrong.any()):
        return None
    at = int(wrong.nonzero()[0])
    return (
        f"token {answer.tokens[at]} at step {at} with the log-likelihood {found[at]:.5g}, and "
        f"without a cache it is {right[0][at]:.5g}{'' if how else ' for the likeliest'}"
    )
