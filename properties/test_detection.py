"""Every bug of the catalogue is caught by the property its entry names, or masked as it says.

The entries of `subjects/bugs.py` are the committed table; they were written before the
hunts here. A bug that only another property sees is red.
"""

from dataclasses import replace
from functools import cache

import pytest

from harness.hunt import Catch, hunt, sweep
from harness.lockstep import Lockstep
from harness.tasks import Source, Status, Task, run_task
from harness.traffic import traffic_schedules
from harness.trial import Trial
from harness.violation import PROPERTIES, STEP_PROPERTIES
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
def hunted(name: str, device: str, seed: int) -> tuple[Lockstep, Catch]:
    """Return the hunt of one bug, done once."""
    lockstep = Lockstep(Trial(device=device).with_bug(name))
    return lockstep, hunt(lockstep, BUGS[name].caught_by, seed, EXAMPLES)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught_by_its_property_and_shrinks(
    name: str, device: str, hunter_seed: int
) -> None:
    """Caught within 50 schedules, near minimal, and seen again with every property on."""
    lockstep, catch = hunted(name, device, hunter_seed)
    assert catch.schedule is not None
    assert len(catch.schedule.steps) <= MOST_STEPS[name]
    assert sum(step.name == "admit" for step in catch.schedule.steps) <= MOST_REQUESTS
    lockstep.watch(PROPERTIES)
    assert BUGS[name].caught_by in lockstep.play(catch.schedule).violated


@pytest.mark.parametrize("name", CAUGHT)
def test_what_shows_a_bug_is_green_without_it(name: str, device: str, hunter_seed: int) -> None:
    _, catch = hunted(name, device, hunter_seed)
    assert catch.schedule is not None
    clean = Lockstep(Trial(device=device, era=BUGS[name].era), PROPERTIES)
    assert clean.play(catch.schedule).violations == ()


@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught_on_real_traffic(name: str, device: str) -> None:
    lockstep = Lockstep(Trial(device=device).with_bug(name))
    pieces = traffic_schedules(lockstep.arms.config, 8, 4, seed=0)
    assert sweep(lockstep, pieces, BUGS[name].caught_by).schedule is not None


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_site_shows_in_no_step(name: str, device: str, hunter_seed: int) -> None:
    """No property of any step sees it, over schedules that replay with padding."""
    result = run_task(
        Task(Trial(device=device).with_bug(name), Source.GENERATED, hunter_seed, EXAMPLES)
    )
    assert result.status is Status.MASKED
    assert BUGS[name].masked_by


def test_a_masked_site_is_caught_together_with_what_masks_it() -> None:
    assert {BUGS[name].without for name in MASKED} == {("entry",), ("before_window",)}
    assert BUGS["loc_memo_warning.entry+before_window"].caught_by == "log_hygiene"


def test_a_stale_capture_is_silent(device: str, hunter_seed: int) -> None:
    """The harmful memo hit warns nowhere: neither while capturing nor in any step."""
    lockstep, catch = hunted("loc_memo_capture", device, hunter_seed)
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
