"""State that no one declared: a finding shows in a fresh process, or is told to depend on it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.fresh import FreshPlaying, begin_fresh, play_fresh
from paritybit.harness.campaigns.hunt import PlayingFailedError
from paritybit.harness.campaigns.replay import Named, judged, lockstep_of
from paritybit.harness.campaigns.task import Task, kept_broken, run_task
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load, save
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.subjects.protocol import ForwardResult

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN
from properties.support.harness.planting import captured
from properties.support.harness.scripted import clean, violating
from properties.support.harness.tensors import first_of, flip

TRIAL = TrialConfig("cpu_graph", buckets=(4,), token_buckets=(4,))
HARMLESS = TRIAL.with_bug("loc_memo_warning.entry")
"""A bug that affects no runner: whatever is found is of something else."""

SCHEDULE = Schedule((Admit(1, 1), Admit(2, 2), Decode((0, 1))), seed=1)
OTHERS = SCHEDULE, Schedule((Admit(3, 3),))

MANY = 20
"""More replays than the first drawn schedules of these trials have, extra runs included."""


def playing(trial: TrialConfig, *schedules: Schedule) -> FreshPlaying:
    """Return what is to be played in a fresh process, judged at every step."""
    return FreshPlaying(trial, STEP_PROPERTIES, frozenset(), schedules)


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


def test_what_only_this_process_remembers_is_undeclared_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither caught nor green. Its case has the schedules before it, and shows nothing alone."""
    for engine in captured(kept_broken(HARMLESS)):
        engine.forward = partial(wrong_after_many, engine.forward, [])  # type: ignore[method-assign]
    result = run_task(Task(HARMLESS, 0, 40))
    kept_broken.cache_clear()
    assert result.status is Status.UNDECLARED_STATE
    finding = result.finding
    assert finding is not None and finding.case.history
    assert finding.case.schedule == result.hunt_result.drawn
    assert finding.violations[-1].property == "declared_state"
    path = tmp_path / "case.json"
    save(finding.case, path)
    assert load(path, Case).history == finding.case.history
    assert main(["replay", str(path)]) == CANNOT_RUN
    assert "shows nothing here: the finding depends on undeclared" in capsys.readouterr().err


def test_a_fresh_process_plays_what_this_process_would(device: str) -> None:
    """With a bug and without it, begun in advance, and a second time."""
    broken = TrialConfig(device=device).with_bug("req_pool_pad")
    schedule = Schedule((Admit(3, 9), Admit(3, 9), Admit(3, 9), Decode((0, 1, 2)), Decode((0,))))
    for trial in (broken, broken.clean):
        asked = playing(trial, schedule)
        begin_fresh(trial, asked.properties)
        for _ in range(2):
            outcome = play_fresh(asked)
            assert outcome.error is None
            assert bool(outcome.violations) is (trial is broken)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_fresh_process_that_gives_no_outcome_is_a_failure_with_its_error() -> None:
    with pytest.raises(PlayingFailedError, match="CUDA"):
        play_fresh(playing(TrialConfig("decode", device="cuda"), SCHEDULE))


def test_a_case_with_a_history_plays_it_first_and_reads_back(tmp_path: Path) -> None:
    case = Case(TRIAL, SCHEDULE, None, 0, (), OTHERS)
    save(case, tmp_path / "case.json")
    assert load(tmp_path / "case.json", Case) == case
    assert tuple(lockstep_of(case).history) == OTHERS
    data = json.loads((tmp_path / "case.json").read_text())
    (tmp_path / "case.json").write_text(json.dumps({**data, "history": 3}))
    with pytest.raises(ValueError, match="Expected `array`"):
        load(tmp_path / "case.json", Case)


def test_a_case_of_undeclared_state_that_shows_after_its_history_is_reproduced() -> None:
    violations = tuple(violating("kv_parity", "declared_state").violations)
    named = Named("case", Case(TRIAL, SCHEDULE, None, 0, violations, OTHERS))
    assert judged(named, violating("kv_parity")).as_said
    assert not judged(named, clean()).as_said
