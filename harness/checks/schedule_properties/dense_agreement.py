"""dense_agreement: detects errors that are equal in both runs, such as a window off by one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from paritybit.harness.checks.property import Playing, Property, Violation
from paritybit.harness.lockstep.observation import Sample
from paritybit.reference.config import Role
from paritybit.reference.model import Model
from paritybit.reference.oracle import dense_draft_logits, dense_logits
from torch import Tensor

ID = "dense_agreement"

DENSE_BOUND = {torch.float32: 2e-4, torch.bfloat16: 0.25}
"""The largest |eager - dense| / (1 + |dense|) of a logit that rounding can cause."""


def bound_of(models: Mapping[Role, Model]) -> float:
    """Return the bound for the reference's arithmetic."""
    return DENSE_BOUND[models[Role.TARGET].dtype]


def judge_schedule(playing: Playing) -> list[Violation]:
    """Compare all logits of requests, including the draft model's, with the oracle.

    The first wrong logits of each request are reported.
    """
    bound = bound_of(playing.models)
    found: dict[tuple[int, bool], Violation] = {}
    for sample, error in sample_errors(playing.models, playing.samples):
        whose = (sample.serial, sample.of_draft)
        if not error <= bound and (whose not in found or sample.place < found[whose].step):
            found[whose] = _violation(sample, error, bound)
    return sorted(found.values(), key=lambda violation: violation.step)


def _violation(sample: Sample, error: float, bound: float) -> Violation:
    what = "draft logits" if sample.of_draft else "logits"
    message = (
        f"request {sample.serial} with {len(sample.tokens)} tokens: eager {what} differ "
        f"from the dense oracle by {error:.3g}; the tolerance is {bound:g}"
    )
    where = {"owner": f"request {sample.serial}", "error": error, "bound": bound}
    return Violation(ID, sample.place, message, where)


@dataclass(frozen=True)
class _Inputs:
    """Everything that a dense forward reads of a request, on the host: see `Sample`."""

    of_request: tuple[int, bool, int, int, bool]
    tokens: Tensor
    hidden_states: Tensor | None

    @classmethod
    def of(cls, sample: Sample) -> "_Inputs":
        """Return the inputs for a sample's request."""
        states = sample.hidden_states
        return cls(
            (
                sample.serial,
                sample.of_draft,
                sample.mrope_delta,
                sample.encoder_len,
                sample.tracked,
            ),
            sample.tokens.cpu(),
            states.cpu() if states is not None else None,
        )

    def start_with(self, other: "_Inputs") -> bool:
        """Whether the other's tokens are the first tokens of this one, with equal inputs."""
        length = len(other.tokens)
        return self.of_request == other.of_request and all(
            theirs is None if mine is None else theirs is not None and mine[:length].equal(theirs)
            for mine, theirs in (
                (self.tokens, other.tokens),
                (self.hidden_states, other.hidden_states),
            )
        )


def sample_errors(
    models: Mapping[Role, Model], samples: Iterable[Sample]
) -> list[tuple[Sample, float]]:
    """Return the error of each sample against the oracle: see `dense_error`.

    One dense forward gives the logits after each of its tokens. It therefore covers all samples of
    a request whose tokens are the first tokens of the longest sample.
    """
    forwards: dict[int, list[tuple[_Inputs, Tensor]]] = {}
    found = []
    for sample in sorted(samples, key=lambda sample: -len(sample.tokens)):
        inputs = _Inputs.of(sample)
        of_serial = forwards.setdefault(sample.serial, [])
        dense = next((rows for longer, rows in of_serial if longer.start_with(inputs)), None)
        if dense is None:
            dense = _dense_rows(models, inputs)
            of_serial.append((inputs, dense))
        found.append((sample, dense_error(sample.logits, dense[len(inputs.tokens) - 1])))
    return found


def dense_error(logits: Tensor, dense: Tensor) -> float:
    """Return the largest |logit - dense| / (1 + |dense|) of two rows of logits."""
    return float(((logits.cpu().double() - dense).abs() / (1 + dense.abs())).max())


def _dense_rows(models: Mapping[Role, Model], inputs: _Inputs) -> Tensor:
    """Return the oracle's logits, float64 [L, vocab], after each of a request's tokens."""
    if inputs.hidden_states is not None:
        return dense_draft_logits(models[Role.DRAFT], inputs.tokens, inputs.hidden_states)
    _, _, mrope_delta, encoder_len, tracked = inputs.of_request
    return dense_logits(
        models[Role.TARGET],
        inputs.tokens,
        mrope_delta,
        encoder_len,
        tracked=tracked,
    )


DENSE_AGREEMENT = Property(
    id=ID,
    statement="eager logits match a float64 model without a KV cache within a tolerance",
    judge_schedule=judge_schedule,
    every_step=False,
    samples=True,
)
