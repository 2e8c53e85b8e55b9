"""Each property of a whole schedule, judged on what a playing left, made by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.property import Playback, Playing, Violation
from paritybit.harness.checks.schedule_properties.dense_agreement import (
    DENSE_BOUND,
    dense_rows,
)
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.observation import Sample
from paritybit.reference.config import PRESETS, Role, draft_config
from paritybit.reference.model import Decoder
from torch import Tensor

from properties.support.harness.tensors import flip

CONFIG = PRESETS["gemma3"]
CPU = torch.device("cpu")
OF_SCHEDULES = [name for name, rule in PROPERTIES.items() if rule.judge_schedule is not None]


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
        tracked=True,
        mrope_delta=serial % 5,
        encoder_len=serial % 4,
        hidden_states=hidden if draft else None,
        place=4,
    )


def sampled(models: dict[Role, Decoder], sample: Sample) -> Sample:
    """Return a request with the logits that the oracle gives it."""
    return replace(sample, logits=dense_rows(models, sample)[-1].float())


def playback() -> Playback:
    """Return the bits of a playing of two outputs; of its storages, element 0 is slot 0's."""
    outputs = torch.arange(4.0), torch.arange(6, dtype=torch.int64)
    return Playback(outputs, torch.arange(8.0), torch.arange(8.0) + 1)


@pytest.fixture(scope="module")
def samples(models: dict[Role, Decoder]) -> tuple[Sample, Sample]:
    """A request of the target's, and what the draft model made of it."""
    return sampled(models, unjudged(3, 14)), sampled(models, unjudged(3, 9, draft=True))


@pytest.fixture
def playing(models: dict[Role, Decoder], samples: tuple[Sample, Sample]) -> Playing:
    """What a right schedule leaves."""
    tokens = torch.arange(12).view(2, 6)
    compared = torch.ones(8, dtype=torch.bool)
    compared[0] = False
    return Playing(
        place=9,
        eager_tokens=tokens,
        graph_tokens=tokens.clone(),
        samples=samples,
        models=models,
        compared=compared,
        first=playback(),
        again=playback(),
    )


def violations(playing: Playing) -> list[Violation]:
    """Return all that the properties of schedules find."""
    judges = (PROPERTIES[name].judge_schedule for name in OF_SCHEDULES)
    return [found for judge in judges if judge is not None for found in judge(playing)]


def test_a_right_schedule_violates_nothing(playing: Playing) -> None:
    assert violations(playing) == []


SPOILED: dict[str, Callable[[Playback], Playback | None]] = {
    "output 1 of the schedule had different bits": lambda again: flip(again.outputs[1], 2),
    "the KV of the eager run had different bits": lambda again: flip(again.eager, 5),
    "the KV of the graph run had different bits": lambda again: flip(again.graph, 5),
    "a second play of the schedule ran a different number of forwards": lambda again: replace(
        again, outputs=again.outputs[:1]
    ),
}
"""What is spoiled in the second playing, by the beginning of the message about it."""


@pytest.mark.parametrize("message", SPOILED)
def test_other_bits_when_it_is_played_again_violate_determinism(
    message: str, playing: Playing
) -> None:
    again = playback()
    (found,) = violations(replace(playing, again=SPOILED[message](again) or again))
    assert (found.property, found.step) == ("determinism", 9)
    assert found.message.startswith(message)


def test_other_tokens_violate_the_trajectory_with_the_first_of_them(playing: Playing) -> None:
    tokens = playing.graph_tokens.clone()
    tokens[1, 2] = 50
    tokens[1, 4] = 51
    (found,) = violations(replace(playing, graph_tokens=tokens))
    assert (found.property, found.step) == ("token_trajectory", 9)
    assert found.message == "token 2 of token row 1: eager 8, graph 50"
    assert found.where == {"token_row": 1, "position": 2, "eager_token": 8, "graph_token": 50}


def moved(logits: Tensor, by: float) -> Tensor:
    """Return logits of which the smallest is off by `by`: its weight is about 1."""
    place = logits.abs().argmin()
    changed = logits.clone()
    changed[place] += by
    return changed


@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("by", [1e-3, -1e-3, float("nan")])
def test_logits_off_the_oracle_violate_agreement(by: float, draft: bool, playing: Playing) -> None:
    """By more than the bound of the models' dtype, or not a number at all."""
    samples = list(playing.samples)
    samples[draft] = replace(samples[draft], logits=moved(samples[draft].logits, by))
    (found,) = violations(replace(playing, samples=tuple(samples)))
    assert (found.property, found.step) == ("dense_agreement", 4)
    length = len(samples[draft].tokens)
    what = "draft logits" if draft else "logits"
    start = f"request 3 with {length} tokens: eager {what} differ from the dense oracle by "
    assert found.message.startswith(start)
    assert found.where["owner"] == "request 3"
    assert found.where["bound"] == DENSE_BOUND[torch.float32] == 2e-4
