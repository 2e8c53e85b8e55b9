"""Prompts prefilled in one forward: each request is what it is when it is prefilled by itself."""

from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Admit, Decode, Extend, Prefill, Schedule, Step
from paritybit.subjects.runners.prefill import MOST_REQUESTS

ROWS = (0, 1, 2)

TOGETHER: tuple[Step, ...] = (Prefill((5, 3, 9), 4), Prefill((), 9), Decode(ROWS), Decode(ROWS))
"""One prompt ends in the first forward and the others in the second, at which the first is done."""

APART: tuple[Step, ...] = (
    *(Admit(5, 4), Admit(3, 4), Admit(9, 4), Extend(0, 9), Extend(0, 9)),
    *(Decode(ROWS), Decode(ROWS)),
)


def tokens_of(pair: Pair, steps: tuple[Step, ...]) -> torch.Tensor:
    """Return all tokens of the graph run after some steps."""
    with torch.inference_mode():
        pair.reset(3)
        for place, step in enumerate(steps):
            pair.step(step, place)
        return pair.graph_scheduler.ownership().tokens.clone()


@pytest.mark.parametrize(("runner", "overlap"), [("piecewise", False), ("breakable", True)])
def test_requests_have_the_tokens_that_they_have_alone(
    runner: str, overlap: bool, device: str
) -> None:
    # Overlapping steps are emulated on a CPU.
    trial = TrialConfig(runner, device="cpu" if overlap else device, overlap=overlap)
    pair = Pair(trial)
    together = tokens_of(pair, TOGETHER)
    assert [request.known for request in pair.eager_scheduler.running] == [8, 6, 12]
    assert torch.equal(together, tokens_of(Pair(replace(trial, overlap=False)), APART))


@pytest.mark.parametrize("count", [MOST_REQUESTS, MOST_REQUESTS + 1])
def test_more_requests_together_than_a_graph_has_room_for_run_eagerly(
    count: int, device: str
) -> None:
    """Although a graph has room for their tokens."""
    trial = TrialConfig("piecewise", device=device, buckets=(4, 16))
    outcome = SchedulePlayer(trial, PROPERTIES).play(Schedule((Prefill((1,) * count, count),)))
    assert (outcome.error, outcome.violations) == (None, ())
    assert outcome.replays == (count <= MOST_REQUESTS)
