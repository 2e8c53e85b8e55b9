"""dense_agreement: faults that are equal in both worlds, as a window off by one is."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from harness.checks.property import Playing, Property, Violation
from harness.lockstep.observation import Sample
from reference.config import Role
from reference.model import Model
from reference.oracle import dense_draft_logits, dense_logits

ID = "dense_agreement"

DENSE_BOUND = {torch.float32: 2e-4, torch.bfloat16: 0.25}
"""Largest |eager - dense| / (1 + |dense|) of a logit: rounding of some tens of sums a layer."""

DENSE_REQUESTS = 3
"""How many requests, the longest first, are held against the oracle at a schedule's end."""


def at_end(playing: Playing) -> list[Violation]:
    """Hold the eager world's latest logits of the longest requests against the dense oracle."""
    bound = DENSE_BOUND[playing.models[Role.TARGET].dtype]
    found = []
    for sample in longest(playing.samples):
        error = dense_error(sample.logits, oracle_logits(playing.models, sample))
        if not error <= bound:
            what = "draft logits" if sample.of_draft else "logits"
            message = (
                f"request {sample.serial} of {len(sample.tokens)} tokens: eager {what} are off"
                f" the dense oracle by {error:.3g}; the bound is {bound:g}"
            )
            where = {"owner": f"request {sample.serial}", "error": error, "bound": bound}
            found.append(Violation(ID, playing.place, message, where))
    return found


def dense_error(logits: Tensor, dense: Tensor) -> float:
    """Return the largest |logit - dense| / (1 + |dense|) of two rows of logits."""
    return float(((logits.cpu().double() - dense).abs() / (1 + dense.abs())).max())


def longest(samples: Iterable[Sample]) -> list[Sample]:
    """Return what is held against the oracle: of either model, the longest requests first."""
    ranked = sorted(samples, key=lambda sample: (-len(sample.tokens), sample.serial))
    of_target = [sample for sample in ranked if not sample.of_draft]
    of_draft = [sample for sample in ranked if sample.of_draft]
    return of_target[:DENSE_REQUESTS] + of_draft[:DENSE_REQUESTS]


def oracle_logits(models: Mapping[Role, Model], sample: Sample) -> Tensor:
    """Return the oracle's logits, float64 [vocab], after the request's last token in the pool."""
    tokens = sample.tokens.cpu()
    if sample.hidden_states is not None:
        return dense_draft_logits(models[Role.DRAFT], tokens, sample.hidden_states)[-1]
    logits = dense_logits(
        models[Role.TARGET], tokens, sample.mrope_delta, sample.tracked, sample.encoder_len
    )
    return logits[-1]


DENSE_AGREEMENT = Property(
    id=ID,
    statement="eager logits agree with a cache-free float64 model within a bound",
    needs=frozenset(),
    at_end=at_end,
    every_step=False,
    samples=True,
)
