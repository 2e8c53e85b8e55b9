"""The generator has teeth: it reaches every required state, and the same seed draws the same."""

from collections import Counter

import pytest

from harness.coverage import REQUIRED_EVENTS
from harness.hunt import draw, hunt, survey
from harness.lockstep import Lockstep
from harness.regress import Run, Settings, plan, unreached
from harness.schedule import Schedule
from harness.tasks import Source, Task, run_task
from harness.trial import Trial
from reference.config import PRESETS

DRAWN = 30


def drawn(lockstep: Lockstep, seed: int) -> list[Schedule]:
    """Return what one seed draws."""
    schedules: list[Schedule] = []
    draw(lockstep, schedules.append, seed, DRAWN, shrink=False)
    return schedules


@pytest.mark.parametrize("preset", PRESETS)
def test_generated_schedules_reach_every_required_state(preset: str, device: str) -> None:
    """Thirty schedules, a third of them for each of three seeds."""
    lockstep = Lockstep(Trial(preset=preset, device=device), frozenset())
    events: Counter[str] = Counter()
    for seed in range(3):
        events += survey(lockstep, seed, DRAWN // 3).events
    assert [event for event in REQUIRED_EVENTS if not events[event]] == []


def test_a_toothless_generator_is_found_out(device: str) -> None:
    """What no clean trial reached is named."""
    run = Run(Settings(device, bugs=()))
    run.results.append(run_task(Task(Trial(device=device), Source.GENERATED, 0, 1)))
    assert set(unreached(run)) & set(REQUIRED_EVENTS)


def test_a_run_plans_every_preset_and_era() -> None:
    tasks = plan(Settings("cpu"))
    clean = [task for task in tasks if task.bug is None]
    assert len({(task.trial.preset, task.trial.era, task.source) for task in clean}) == 18
    assert tasks[: len(clean)] == clean


def test_the_same_seed_draws_the_same_schedules(device: str) -> None:
    lockstep = Lockstep(Trial(device=device), frozenset())
    assert drawn(lockstep, 5) == drawn(lockstep, 5)
    assert drawn(lockstep, 5) != drawn(lockstep, 6)


def test_the_same_seed_shrinks_to_the_same_schedule(device: str) -> None:
    lockstep = Lockstep(Trial(device=device).with_bug("swa_int64"))
    first = hunt(lockstep, "index_contract", 3, DRAWN).schedule
    assert first is not None
    assert hunt(lockstep, "index_contract", 3, DRAWN).schedule == first
