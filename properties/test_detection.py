"""Every bug of the catalogue is caught by the property its entry names, or masked as it says.

The entries of `subjects/bugs.py` are the committed table; they were written before the
hunts here. A bug that only another property sees is red.
"""

from dataclasses import replace
from functools import cache

import pytest

from harness.hunt import Catch, hunt, sweep
from harness.lockstep import Lockstep
from harness.schedule import Idle, Schedule
from harness.tasks import Source, Status, Task, run_task
from harness.traffic import traffic_schedules
from harness.trial import Trial
from harness.violation import PROPERTIES, STEP_PROPERTIES
from properties.trials import bug_trial
from subjects.bugs import BUGS

CAUGHT = [name for name, bug in BUGS.items() if bug.caught_by is not None]
MASKED = [name for name, bug in BUGS.items() if bug.caught_by is None]
EXAMPLES = 50
MOST_STEPS = {
    "swa_pad": 5,
    "swa_int64": 2,
    "req_pool_pad": 5,
    "loc_memo_warning": 1,
    "loc_memo_warning.after_window": 1,
    "loc_memo_warning.entry+before_window": 2,
    "loc_memo_warning.entry+after_window": 1,
    "loc_memo_warning.before_window+after_window": 1,
    "loc_memo_capture": 2,
}
"""How long a shrunk schedule may be: as many steps as the mechanism needs, or one more."""

MOST_REQUESTS = 2


@cache
def hunted(trial: Trial, seed: int) -> tuple[Lockstep, Catch]:
    """Return the hunt of one bug, done once."""
    assert trial.bug is not None
    lockstep = Lockstep(trial)
    return lockstep, hunt(lockstep, BUGS[trial.bug].caught_by, seed, EXAMPLES)


@pytest.fixture
def trial(name: str, device: str, request: pytest.FixtureRequest) -> Trial:
    """The trial of a bug, on the preset that was asked for or on the bug's own."""
    return bug_trial(name, device, request.config.getoption("--preset"))


@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught_by_its_property_and_shrinks(
    name: str, trial: Trial, hunter_seed: int
) -> None:
    """Caught within 50 schedules, near minimal, and seen again with every property on."""
    lockstep, catch = hunted(trial, hunter_seed)
    assert catch.schedule is not None
    assert len(catch.schedule.steps) <= MOST_STEPS[name]
    assert sum(step.name == "admit" for step in catch.schedule.steps) <= MOST_REQUESTS
    lockstep.watch(PROPERTIES)
    assert BUGS[name].caught_by in lockstep.play(catch.schedule).violated


@pytest.mark.parametrize("name", CAUGHT)
def test_what_shows_a_bug_is_green_without_it(name: str, trial: Trial, hunter_seed: int) -> None:
    _, catch = hunted(trial, hunter_seed)
    assert catch.schedule is not None
    clean = Lockstep(replace(trial, bug=None), PROPERTIES)
    assert clean.play(catch.schedule).violations == ()


@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught_on_real_traffic(name: str, trial: Trial) -> None:
    lockstep = Lockstep(trial)
    pieces = traffic_schedules(lockstep.arms.config, 8, trial.room, 4, seed=0)
    assert sweep(lockstep, pieces, BUGS[name].caught_by).schedule is not None


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_site_shows_in_no_step(name: str, trial: Trial, hunter_seed: int) -> None:
    """No property sees it, over schedules that replay with padding."""
    result = run_task(Task(trial, Source.GENERATED, hunter_seed, EXAMPLES))
    assert result.status is Status.MASKED
    assert BUGS[name].masked_by


def test_the_memo_warns_in_a_replay_that_no_allocation_precedes(device: str) -> None:
    """An idle step of the graph path: what the capture left takes turns with the window."""
    lockstep = Lockstep(Trial(device=device).with_bug("loc_memo_warning"))
    outcome = lockstep.play(Schedule((Idle(),)))
    assert [each.property for each in outcome.violations] == ["log_hygiene"]
    assert outcome.violations[0].where["path"] == "graph replay"
    assert outcome.padded_replays == 1


def test_a_masked_site_is_caught_together_with_what_masks_it() -> None:
    assert {BUGS[name].without for name in MASKED} == {("entry",), ("before_window",)}
    assert BUGS["loc_memo_warning.entry+before_window"].caught_by == "log_hygiene"


def test_a_stale_capture_is_silent(device: str, hunter_seed: int) -> None:
    """The harmful memo hit warns nowhere: neither while capturing nor in any step."""
    lockstep, catch = hunted(bug_trial("loc_memo_capture", device, None), hunter_seed)
    assert catch.schedule is not None
    lockstep.watch(PROPERTIES)
    outcome = lockstep.play(catch.schedule)
    assert "kv_parity" in outcome.violated
    assert "log_hygiene" not in outcome.violated
    assert lockstep.capture_warnings == ()


def test_a_bug_of_the_wrong_property_is_red(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that names another property is found out."""
    wrong = replace(BUGS["swa_pad"], caught_by="log_hygiene")
    monkeypatch.setattr("harness.tasks.BUGS", {**BUGS, "swa_pad": wrong})
    task = Task(Trial(device=device).with_bug("swa_pad"), Source.GENERATED, 0, 20)
    assert run_task(task).status is Status.WRONG_PROPERTY


def test_a_bug_that_changes_nothing_is_missed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inert = replace(BUGS["swa_pad"], rows={})
    monkeypatch.setattr("harness.tasks.BUGS", {**BUGS, "swa_pad": inert})
    monkeypatch.setattr("harness.trial.BUGS", {**BUGS, "swa_pad": inert})
    task = Task(Trial(device=device).with_bug("swa_pad"), Source.GENERATED, 0, 5)
    assert run_task(task).status is Status.MISSED


def test_every_property_that_must_catch_is_checked_at_every_step() -> None:
    assert {BUGS[name].caught_by for name in CAUGHT} <= STEP_PROPERTIES
