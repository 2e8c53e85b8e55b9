"""dense_agreement on samples made by hand."""

from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.schedule_properties.dense_agreement import (
    DENSE_BOUND,
    dense_rows,
    judge_schedule,
)
from paritybit.harness.lockstep.observation import Sample
from paritybit.reference.config import PRESETS, Role, draft_config
from paritybit.reference.model import Decoder
from torch import Tensor

CONFIG = PRESETS["gemma3"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models() -> dict[Role, Decoder]:
    """The target and its draft, in float32."""
    draft = draft_config(CONFIG)
    return {
        Role.TARGET: Decoder(CONFIG, torch.float32, CPU),
        Role.DRAFT: Decoder(draft, torch.float32, CPU, 1),
    }


def unjudged(serial: int, length: int, *, draft: bool = False) -> Sample:
    """Return a request right after it sampled, with no logits yet."""
    generator = torch.Generator().manual_seed(serial)
    hidden = torch.randn(length, CONFIG.hidden, generator=generator)
    return Sample(
        serial=serial,
        tokens=torch.randint(CONFIG.vocab, (length,), generator=generator),
        logits=torch.zeros(CONFIG.vocab),
        hidden_states=hidden if draft else None,
        index=4,
    )


def sampled(models: dict[Role, Decoder], sample: Sample) -> Sample:
    """Return a request with the logits that the oracle gives it."""
    return replace(sample, logits=dense_rows(models, sample)[-1].float())


@pytest.fixture(scope="module")
def samples(models: dict[Role, Decoder]) -> tuple[Sample, Sample]:
    """A request of the target's, and what the draft model made of it."""
    return sampled(models, unjudged(3, 14)), sampled(models, unjudged(3, 9, draft=True))


def test_right_logits_agree_with_the_oracle(
    models: dict[Role, Decoder], samples: tuple[Sample, Sample]
) -> None:
    assert judge_schedule(models, samples) == []


def moved(logits: Tensor, by: float) -> Tensor:
    """Return logits of which the smallest is off by `by`: its weight is about 1."""
    place = logits.abs().argmin()
    changed = logits.clone()
    changed[place] += by
    return changed


@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("by", [1e-3, -1e-3, float("nan")])
def test_logits_off_the_oracle_violate_agreement(
    by: float, draft: bool, models: dict[Role, Decoder], samples: tuple[Sample, Sample]
) -> None:
    """By more than the bound of the models' dtype, or not a number at all."""
    wrong = list(samples)
    wrong[draft] = replace(samples[draft], logits=moved(samples[draft].logits, by))
    (found,) = judge_schedule(models, wrong)
    assert (found.property, found.step) == ("dense_agreement", 4)
    length = len(samples[draft].tokens)
    what = "draft logits" if draft else "logits"
    start = f"request 3 with {length} tokens: eager {what} differ from the dense oracle by "
    assert found.message.startswith(start)
    assert found.where["owner"] == "request 3"
    assert found.where["bound"] == DENSE_BOUND[torch.float32] == 2e-4
