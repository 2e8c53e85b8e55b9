"""The same seed draws the same schedules, and those of clean trials reach what they must."""

from collections import Counter

import pytest
from paritybit.harness.campaigns.plan import RunConfig, all_hunts, clean_tasks
from paritybit.harness.campaigns.search import draw_schedules
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.boundaries import BoundaryScene, Ground, scenes
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.runners import RUNNERS, engine_runners

from properties.support.harness.coverage import Coverage, required_events


def drawn(seed: int) -> list[Schedule]:
    """Return what a seed draws."""
    found: list[Schedule] = []
    draw_schedules(TrialConfig("decode"), found.append, seed, 15)
    return found


def test_the_same_seed_draws_the_same_schedules() -> None:
    assert drawn(3) == drawn(3) != drawn(4)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_longest_context_and_a_bucket_of_one_row_have_no_violation(
    runner: str,
) -> None:
    trial = TrialConfig(runner, buckets=(1, 4), token_buckets=(1, 5))
    ground = Ground(trial.model, (1, 4), (1, 5), trial.modes, RUNNERS[runner].mode)
    played = [BoundaryScene(bucket, "longest") for bucket in ground.sizes]
    player = SchedulePlayer(trial)
    coverage = Coverage(player)
    outcome = player.play(Schedule(scenes(ground, played)), coverage)
    assert (outcome.violations, outcome.error) == ((), None)
    assert all(coverage.events[f"{runner}: bucket {size} full"] for size in ground.sizes)


ENGINES = {tuple(one.name for one in engine_runners(runner)): None for runner in RUNNERS}


@pytest.mark.parametrize("runners", ENGINES)
def test_the_clean_trials_of_an_engine_reach_each_required_state(runners: tuple[str, ...]) -> None:
    """A state that no schedule reaches is one that no property judges."""
    settings, reached = RunConfig("cpu", all_hunts(runners), every_scheme=False), Counter[str]()
    for task in clean_tasks(settings):
        player = SchedulePlayer(task.trial, ())

        def play(schedule: Schedule, player: SchedulePlayer = player) -> None:
            coverage = Coverage(player)
            reached["steps overlapped"] += player.play(schedule, coverage).overlapped
            reached.update(coverage.events)

        draw_schedules(task.trial, play, task.seed, task.examples)
    required = (*required_events(runners), *["steps overlapped"] * bool(settings.overlapping))
    assert [event for event in required if not reached[event]] == []
