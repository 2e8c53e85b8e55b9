"""The same seed draws the same schedules. That they reach what they must is in each verdict."""

import pytest
from paritybit.harness.campaigns.search import draw_schedules
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.boundaries import BoundaryScene, Ground, scenes
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.runners import RUNNERS


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
    outcome = SchedulePlayer(trial).play(Schedule(scenes(ground, played)))
    assert (outcome.violations, outcome.error) == ((), None)
    assert all(outcome.events[f"{runner}: bucket {size} full"] for size in ground.sizes)
