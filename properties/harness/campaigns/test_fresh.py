"""A finding is played again in a fresh process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.fresh import FreshPlaying, begin_fresh, play_fresh
from paritybit.harness.campaigns.search import PlayingFailedError
from paritybit.harness.campaigns.task import Task, cached_player, run_task
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.subjects.protocol import ForwardResult

from properties.support.harness.planting import captured
from properties.support.harness.tensors import first_of, flip

TRIAL = TrialConfig("cpu_graph", buckets=(4,), token_buckets=(4,))
HARMLESS = TRIAL.with_bug("loc_memo_warning.entry")
"""A bug that affects no runner."""

MANY = 20
"""More replays than the first drawn schedules of these trials have, extra runs included."""


def wrong_after_many(
    forward: Callable[..., ForwardResult], seen: list[int], *words: Any
) -> ForwardResult:
    """Run a forward. After MANY replays, flip a bit of each output."""
    result = forward(*words)
    if result.replay is not None:
        seen.append(1)
        if len(seen) > MANY and result.replay.live_size:
            flip(first_of(result.replay.live_output), -1, -1)
    return result


def test_a_finding_that_depends_on_what_this_process_remembers_is_undeclared_state() -> None:
    for engine in captured(cached_player(HARMLESS)):
        engine.forward = partial(wrong_after_many, engine.forward, [])  # type: ignore[method-assign]
    result = run_task(Task(HARMLESS, 0, 40))
    cached_player.cache_clear()
    assert result.status is Status.UNDECLARED_STATE
    assert result.finding is not None and result.finding.violations


def test_a_fresh_process_plays_what_this_process_would(device: str) -> None:
    """With a bug and without it, begun in advance, and a second time."""
    broken = TrialConfig(device=device).with_bug("req_pool_pad")
    schedule = Schedule((Admit(3, 9), Admit(3, 9), Admit(3, 9), Decode((0, 1, 2)), Decode((0,))))
    for trial in (broken, broken.clean):
        playing = FreshPlaying(trial, CHEAP_PROPERTIES, frozenset(), schedule)
        begin_fresh(trial, playing.properties)
        for _ in range(2):
            outcome = play_fresh(playing)
            assert outcome.error is None
            assert bool(outcome.violations) is (trial is broken)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_fresh_process_that_gives_no_outcome_is_a_failure_with_its_error() -> None:
    trial = TrialConfig("decode", device="cuda")
    with pytest.raises(PlayingFailedError, match="CUDA"):
        play_fresh(FreshPlaying(trial, CHEAP_PROPERTIES, frozenset(), Schedule(())))
