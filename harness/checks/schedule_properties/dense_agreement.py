"""dense_agreement: detects errors that are equal in both runs, such as a window off by one."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from paritybit.harness.checks.property import Property, Violation
from paritybit.harness.lockstep.observation import Sample
from paritybit.reference.config import Role
from paritybit.reference.model import Decoder
from paritybit.reference.oracle import dense_draft_logits, dense_logits
from torch import Tensor

ID = "dense_agreement"

DENSE_BOUND = {torch.float32: 2e-4, torch.bfloat16: 0.25}
"""The largest |eager - dense| / (1 + |dense|) of a logit that rounding can cause."""


def judge_schedule(models: Mapping[Role, Decoder], samples: Sequence[Sample]) -> list[Violation]:
    """Compare all logits of requests, including the draft model's, with the oracle.

    The first wrong logits of each request are reported.
    """
    bound = DENSE_BOUND[models[Role.TARGET].dtype]
    found: dict[tuple[int, bool], Violation] = {}
    for sample, error in sample_errors(models, samples):
        whose = (sample.serial, sample.of_draft)
        if error <= bound or (whose in found and sample.index >= found[whose].step):
            continue
        what = "draft logits" if sample.of_draft else "logits"
        message = (
            f"request {sample.serial} with {len(sample.tokens)} tokens: eager {what} differ "
            f"from the dense oracle by {error:.3g}; the tolerance is {bound:g}"
        )
        where = {"owner": f"request {sample.serial}", "error": error, "bound": bound}
        found[whose] = Violation(ID, sample.index, message, where)
    return sorted(found.values(), key=lambda violation: violation.step)


def sample_errors(
    models: Mapping[Role, Decoder], samples: Iterable[Sample]
) -> list[tuple[Sample, float]]:
    """Return each sample's largest |logit - right| / (1 + |right|). `right` is the oracle's logit.

    One dense forward gives the logits after each of its tokens. It therefore covers all samples of
    a request whose tokens are the first tokens of the longest sample.
    """
    forwards: dict[tuple[int, bool], list[tuple[Sample, Tensor]]] = {}
    found = []
    for sample in sorted(samples, key=lambda sample: -len(sample.tokens)):
        of_request = forwards.setdefault((sample.serial, sample.of_draft), [])
        dense = next((rows for longer, rows in of_request if starts_with(longer, sample)), None)
        if dense is None:
            dense = dense_rows(models, sample)
            of_request.append((sample, dense))
        right = dense[len(sample.tokens) - 1]
        error = (sample.logits.cpu().double() - right).abs() / (1 + right.abs())
        found.append((sample, float(error.max())))
    return found


def starts_with(longer: Sample, sample: Sample) -> bool:
    """Whether the inputs of a sample are the first ones of a longer sample of its request."""
    length = len(sample.tokens)
    if not longer.tokens[:length].equal(sample.tokens):
        return False
    states, theirs = longer.hidden_states, sample.hidden_states
    return states is None or theirs is None or states[:length].equal(theirs)


def dense_rows(models: Mapping[Role, Decoder], sample: Sample) -> Tensor:
    """Return the oracle's logits, float64 [L, vocab], after each of a sample's tokens."""
    tokens = sample.tokens.cpu()
    if sample.hidden_states is not None:
        return dense_draft_logits(models[Role.DRAFT], tokens, sample.hidden_states.cpu())
    return dense_logits(models[Role.TARGET], tokens)


DENSE_AGREEMENT = Property(
    id=ID,
    statement="eager logits match a float64 model without a KV cache within a tolerance",
    judge_schedule=judge_schedule,
    cheap=False,
)
