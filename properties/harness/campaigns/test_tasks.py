"""How a task ends. An internal error is a failure with its traceback, and never a verdict."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from paritybit.harness.campaigns import task as tasks
from paritybit.harness.campaigns.fresh import FreshPlaying
from paritybit.harness.campaigns.task import Task, TaskRunner, run_task, without_result
from paritybit.harness.checks.play import Outcome
from paritybit.harness.errors import headline
from paritybit.harness.explain.report import Observed
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.schema import Status, TrialRow
from paritybit.harness.schedules.schedule import Schedule

from properties.support.harness.scripted import ERROR, Scripted, clean, losing, searched, violating

TRIAL = TrialConfig("cpu_graph")
BROKEN = TRIAL.with_bug("req_pool_pad")
HARMLESS = TRIAL.with_bug("loc_memo_warning.entry")
"""A bug that affects no runner."""

TARGET = "hermetic_replay"

Script = Callable[[Scripted, Schedule], Outcome]


def always(outcome: Outcome) -> Script:
    """Return a script in which every playing has one outcome."""
    return lambda *_: outcome


CLEAN = always(clean())


def shown(playing: FreshPlaying) -> Outcome:
    """Return the outcome of a fresh process in which the finding recurs."""
    return violating(*(playing.until or playing.properties))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrialRow]:
    """Return the function that runs a task on scripted players."""

    def run(
        script: Script,
        trial: TrialConfig = BROKEN,
        *,
        without_bug: Script = CLEAN,
        fresh: Callable[[FreshPlaying], Outcome] = shown,
        **parts: Any,
    ) -> TrialRow:
        kept = {
            False: Scripted(trial, script if trial.bug is None else without_bug),
            True: Scripted(trial, script),
        }
        monkeypatch.setattr(tasks, "cached_player", lambda trial: kept[trial.bug is not None])
        monkeypatch.setattr(tasks, "SchedulePlayer", lambda trial: kept[trial.bug is not None])
        monkeypatch.setattr(
            tasks, "observe", lambda one, schedule: Observed(one, schedule, one.play(schedule), ())
        )
        monkeypatch.setattr(tasks, "begin_fresh", lambda *_: None)
        monkeypatch.setattr(tasks, "play_fresh", fresh)
        monkeypatch.setattr(tasks, "explanation", parts.get("explanation", lambda *_: None))
        return run_task(Task(trial, 0, 3))

    return run


def without(count: str) -> Outcome:
    """Return the outcome of a clean playing of which one count is nothing."""
    nothing: dict[str, Any] = {count: 0}
    return replace(clean(), **nothing)


ENDS: dict[str, tuple[TrialConfig, Outcome, Outcome, Status]] = {
    "the bug alone": (BROKEN, violating(TARGET), clean(), Status.CAUGHT),
    "without the bug too": (BROKEN, violating(TARGET), violating(TARGET), Status.CLEAN_IS_RED),
    "another property": (BROKEN, violating("log_hygiene"), clean(), Status.WRONG_PROPERTY),
    "nothing": (BROKEN, clean(), clean(), Status.MISSED),
    "nothing of a harmless bug": (HARMLESS, clean(), clean(), Status.UNAFFECTED),
    "a harmless bug": (HARMLESS, violating(TARGET), clean(), Status.AFFECTED_AFTER_ALL),
    "a clean build": (TRIAL, clean(), clean(), Status.GREEN),
    "a violation of a clean build": (TRIAL, violating(TARGET), clean(), Status.RED),
    "no replay": (TRIAL, without("replays"), clean(), Status.VACUOUS),
    "no padding": (TRIAL, without("padded_replays"), clean(), Status.VACUOUS),
    "no sample": (TRIAL, without("compared"), clean(), Status.VACUOUS),
    "no padding of a harmless bug": (HARMLESS, without("padded_replays"), clean(), Status.VACUOUS),
}
"""The trial, the outcome of every playing of it and of the clean build, and the status."""


@pytest.mark.parametrize("which", ENDS)
def test_the_status_of_a_task_follows_from_its_playings(
    which: str, ended: Callable[..., TrialRow]
) -> None:
    trial, outcome, of_clean, status = ENDS[which]
    result = ended(always(outcome), trial, without_bug=always(of_clean))
    assert (result.status, result.error) == (status, None)


def test_a_clean_build_that_warned_while_it_was_captured_is_not_green(
    ended: Callable[..., TrialRow],
) -> None:
    def script(player: Scripted, _: Schedule) -> Outcome:
        player.capture_warnings = ("loc changed",)
        return clean()

    result = ended(script, TRIAL)
    assert result.status is Status.CAPTURE_WARNED


def changing(count: int, first: Outcome, then: Outcome) -> Script:
    """Return a script with one outcome in `count` playings, and another in all after them."""
    return lambda player, _: first if player.played <= count else then


FAILED = violating(error=ERROR)

FAILURES: dict[str, dict[str, Any]] = {
    "the first schedule": {"script": always(FAILED)},
    "a violation and an error": {"script": always(violating(TARGET, error=ERROR))},
    "a schedule of shrinking": {"script": changing(1, violating(TARGET), FAILED)},
    "the playing with all properties": {"script": changing(2, violating(TARGET), FAILED)},
    "the clean build": {"script": always(violating(TARGET)), "without_bug": always(FAILED)},
    "a fresh process": {"script": always(violating(TARGET)), "fresh": lambda _: FAILED},
}


@pytest.mark.parametrize("which", FAILURES)
def test_an_internal_error_in_any_playing_is_a_failure_with_its_traceback(
    which: str, ended: Callable[..., TrialRow]
) -> None:
    result = ended(**FAILURES[which])
    assert (result.status, result.spoiled) == (Status.FAILED, True)
    assert result.error is not None
    assert headline(result.error) == "ZeroDivisionError: of ours"
    assert result.sentence == "failed: ZeroDivisionError: of ours"


def test_an_error_of_the_explainer_leaves_the_verdict(ended: Callable[..., TrialRow]) -> None:
    """The process is not used again."""

    def fail(*_: Any) -> None:
        raise RuntimeError("cannot explain")

    result = ended(always(violating(TARGET)), explanation=fail)
    assert (result.status, result.spoiled) == (Status.CAUGHT, True)
    assert result.finding is not None and result.finding.error is not None
    assert headline(result.finding.error) == "RuntimeError: cannot explain"
    assert 'File "/' not in result.finding.error


def test_a_finding_that_its_shrunk_schedule_does_not_show_is_not_reproduced(
    ended: Callable[..., TrialRow],
) -> None:
    script = changing(3, violating(TARGET), violating("log_hygiene"))
    assert ended(script).status is Status.NOT_REPRODUCED


@pytest.mark.parametrize("trial", [TRIAL, BROKEN, HARMLESS], ids=["clean", "broken", "harmless"])
def test_a_finding_that_no_fresh_process_shows_is_undeclared_state(
    trial: TrialConfig, ended: Callable[..., TrialRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(monkeypatch)
    result = ended(changing(2, clean(), violating(TARGET)), trial, fresh=lambda _: clean())
    assert (result.status, result.error) == (Status.UNDECLARED_STATE, None)
    assert result.finding is not None
    assert result.finding.case.schedule == found[0].unshrunk
    assert [violation.property for violation in result.finding.violations] == [TARGET]


def test_a_finding_that_a_fresh_process_shows_unshrunk_only_keeps_the_drawn_schedule(
    ended: Callable[..., TrialRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(monkeypatch)

    def fresh(playing: FreshPlaying) -> Outcome:
        return violating(TARGET) if len(playing.schedule.steps) > 1 else clean()

    result = ended(always(violating(TARGET)), fresh=fresh)
    assert result.finding is not None
    assert result.finding.case.schedule == found[0].unshrunk != found[0].schedule


def test_a_lost_device_is_a_finding_of_its_own(ended: Callable[..., TrialRow]) -> None:
    result = ended(losing)
    assert (result.status, result.spoiled, result.error) == (Status.DEVICE_LOST, True, None)
    assert result.finding is not None
    assert result.finding.violations[0].property == "captured_path"


def test_a_task_after_one_that_spoiled_its_process_runs_in_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error is a result, and spoils the process, too."""
    here, elsewhere = list[Task](), list[Task]()

    def run(task: Task) -> TrialRow:
        here.append(task)
        if task.trial == HARMLESS:
            raise RuntimeError("of ours")
        return without_result(task, "lost") if task.trial == BROKEN else green(task)

    def green(task: Task) -> TrialRow:
        return structs.replace(without_result(task, ""), status=Status.GREEN, error=None)

    monkeypatch.setattr(tasks, "run_task", run)

    def run_elsewhere(_: object, task: Task) -> TrialRow:
        elsewhere.append(task)
        return green(task)

    monkeypatch.setattr(tasks, "in_new_process", run_elsewhere)
    for spoiling in (BROKEN, HARMLESS):
        runner = TaskRunner()
        results = [runner(Task(trial, 0, 1)).status for trial in (TRIAL, spoiling, TRIAL, TRIAL)]
        assert results == [Status.GREEN, Status.FAILED, Status.GREEN, Status.GREEN]
    assert (len(here), len(elsewhere)) == (4, 4)
