"""dense_agreement: faults that are equal in both worlds, as a window off by one is."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from harness.checks.property import Playing, Property, Violation
from harness.lockstep.observation import Sample
from reference.batch import Mode
from reference.config import Role
from reference.model import Model
from reference.oracle import dense_draft_logits, dense_logits

ID = "dense_agreement"

DENSE_BOUND = {torch.float32: 2e-4, torch.bfloat16: 0.25}
"""Largest |eager - dense| / (1 + |dense|) of a logit: rounding of some tens of sums a layer."""

DENSE_REQUESTS = 3
"""How many requests, the longest first, are held against the oracle at a schedule's end."""


def at_end(playing: Playing) -> list[Violation]:
    """Hold latest logits of the longest requests, and all of an engine's own, against the oracle.

    The latter are those of an engine whose arithmetic is not the reference's; its windows are
    then the oracle's, and its bound holds.
    """
    rounding = DENSE_BOUND[playing.models[Role.TARGET].dtype]
    found = []
    for sample in held_against_oracle(playing.samples):
        error = sample_error(playing.models, sample)
        bound = rounding if sample.arithmetic is None else sample.arithmetic.bound
        if not error <= bound:
            what = "draft logits" if sample.of_draft else "logits"
            whose = "eager" if sample.arithmetic is None else "the engine's"
            message = (
                f"request {sample.serial} of {len(sample.tokens)} tokens: {whose} {what} are off"
                f" the dense oracle by {error:.3g}; the bound is {bound:g}"
            )
            where = {"owner": f"request {sample.serial}", "error": error, "bound": bound}
            found.append(Violation(ID, playing.place, message, where))
    return found


def dense_error(logits: Tensor, dense: Tensor) -> float:
    """Return the largest |logit - dense| / (1 + |dense|) of two rows of logits."""
    return float(((logits.cpu().double() - dense).abs() / (1 + dense.abs())).max())


def sample_error(models: Mapping[Role, Model], sample: Sample) -> float:
    """Return by how much a sample's logits are off the oracle's: see `dense_error`."""
    return dense_error(sample.logits, oracle_logits(models, sample))


def held_against_oracle(samples: Iterable[Sample]) -> list[Sample]:
    """Return the eager world's longest requests of either model, then all of an engine's own."""
    ranked = sorted(samples, key=lambda sample: (-len(sample.tokens), sample.serial))
    eager = [sample for sample in ranked if sample.arithmetic is None]
    of_target = [sample for sample in eager if not sample.of_draft]
    of_draft = [sample for sample in eager if sample.of_draft]
    own = [sample for sample in ranked if sample.arithmetic is not None]
    return of_target[:DENSE_REQUESTS] + of_draft[:DENSE_REQUESTS] + own


def oracle_logits(models: Mapping[Role, Model], sample: Sample) -> Tensor:
    """Return the oracle's logits, float64 [vocab], after the request's last token in the pool."""
    tokens = sample.tokens.cpu()
    if sample.hidden_states is not None:
        return dense_draft_logits(models[Role.DRAFT], tokens, sample.hidden_states)[-1]
    logits = dense_logits(
        models[Role.TARGET],
        tokens,
        sample.mrope_delta,
        sample.encoder_len,
        own_windows(sample),
        tracked=sample.tracked,
    )
    return logits[-1]


def own_windows(sample: Sample) -> Tensor | None:
    """Return the window of each token, int64 [L], None where they are all the model's."""
    if sample.arithmetic is None:
        return None
    windows, place = sample.arithmetic.windows, torch.arange(len(sample.tokens))
    return torch.where(place < sample.prefilled, windows[Mode.EXTEND], windows[Mode.DECODE])


DENSE_AGREEMENT = Property(
    id=ID,
    statement="logits, eager or an engine's own, agree with a cache-free float64 model in a bound",
    needs=frozenset(),
    at_end=at_end,
    every_step=False,
    samples=True,
)
