"""How a task ends: an error of ours is a failure with its traceback, and never a verdict."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from paritybit.harness.campaigns import task as tasks
from paritybit.harness.campaigns.executor import Ended
from paritybit.harness.campaigns.fresh import FreshPlaying, PlayFresh
from paritybit.harness.campaigns.hunt import (
    SHRINKING_STEPS,
    HuntResult,
    PlayingFailedError,
    hunt,
    play_all,
)
from paritybit.harness.campaigns.regress import Run, RunConfig, plan, verdict
from paritybit.harness.campaigns.replay import Named, Replayed, judged, replayed
from paritybit.harness.campaigns.task import (
    Result,
    Task,
    found_by,
    result_of,
    run_in_turn,
    run_task,
)
from paritybit.harness.checks.play import DeviceLostError, Outcome
from paritybit.harness.checks.table import DIVERGING_PROPERTIES, STEP_PROPERTIES
from paritybit.harness.errors import headline
from paritybit.harness.explain.report import Explained
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.records.schema import Finding, Status
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule

from properties.support.harness.scripted import ERROR, Scripted, clean, violating

TRIAL = TrialConfig("cpu_graph")
BROKEN = TRIAL.with_bug("req_pool_pad")
TARGET = "hermetic_replay"
SCHEDULE = Schedule((Admit(1, 1), Decode((0,))))

Locksteps = Callable[[TrialConfig], Any]


@pytest.fixture(autouse=True)
def no_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play what is found by the script, too, and explain nothing."""
    monkeypatch.setattr(tasks, "observe", lambda lockstep, schedule: (lockstep.play(schedule), []))
    monkeypatch.setattr("paritybit.harness.campaigns.locksteps.explanation", lambda *_: None)


def locksteps(
    broken: Callable[[Scripted, Schedule], Outcome], of_clean: Outcome | None = None
) -> Locksteps:
    """Return what builds scripted locksteps: of a trial with a bug, and of one without."""

    def build(trial: TrialConfig) -> Scripted:
        if trial.bug is None and of_clean is not None:
            return Scripted(trial, lambda *_: of_clean)
        return Scripted(trial, broken)

    return build


def showing(playing: FreshPlaying) -> Outcome:
    """Show in a fresh process whatever was looked for there."""
    return violating(*(playing.until or playing.properties))


def ended(
    script: Callable[[Scripted, Schedule], Outcome], play: PlayFresh = showing, **others: Any
) -> Result:
    """Return how a hunt of a bug ends, of which a fresh process shows what is found."""
    return run_task(Task(BROKEN, 0, 3), locksteps(script, **others), play)


def test_a_bug_that_is_seen_alone_is_caught() -> None:
    """What the other tests change one thing of. The hunt ends at its first case, once shrunk."""
    result = ended(lambda *_: violating(TARGET), of_clean=clean())
    assert (result.status, result.error, result.spoiled) == (Status.CAUGHT, None, False)
    assert result.hunt_result.schedules == 1
    assert result.finding is not None
    assert result.finding.case.schedule.steps == ()


def test_a_hunt_judges_by_all_it_watches_only_where_it_finds_nothing() -> None:
    """Its target, and what ends a playing, are enough until then."""
    judged: list[frozenset[str]] = []

    def script(lockstep: Scripted, _: Schedule) -> Outcome:
        judged.append(frozenset(lockstep.properties))
        return violating(TARGET) if len(judged) == 2 else clean()

    assert ended(script).hunt_result.schedules == 2
    assert judged[:2] == [DIVERGING_PROPERTIES | {TARGET}] * 2
    judged.clear()
    judged += [frozenset()] * 2
    assert ended(script).status is Status.MISSED
    assert judged[2:] == [DIVERGING_PROPERTIES | {TARGET}] * 3 + [STEP_PROPERTIES | {TARGET}] * 3


def seen_then_failing(count: int) -> Callable[[Scripted, Schedule], Outcome]:
    """Return a script that violates the target in `count` playings and fails in all after them."""

    def script(lockstep: Scripted, _: Schedule) -> Outcome:
        return violating(TARGET) if lockstep.played <= count else violating(error=ERROR)

    return script


FAILURES: dict[str, tuple[Callable[[Scripted, Schedule], Outcome], Outcome]] = {
    "the first schedule": (lambda *_: violating(error=ERROR), clean()),
    "what violates something too": (lambda *_: violating(TARGET, error=ERROR), clean()),
    "a schedule of shrinking": (seen_then_failing(1), clean()),
    "the one with every property on": (seen_then_failing(2), clean()),
    "the one of the clean build": (lambda *_: violating(TARGET), violating(error=ERROR)),
}
"""Which playing an error of ours ends: scripts of the broken build and of the clean one."""


@pytest.mark.parametrize("which", FAILURES)
def test_an_error_of_ours_in_a_hunt_is_a_failure_with_its_traceback(which: str) -> None:
    script, of_clean = FAILURES[which]
    result = ended(script, of_clean=of_clean)
    assert (result.status, result.spoiled) == (Status.FAILED, True)
    assert result.error is not None
    assert (
        result.error.splitlines()[1]
        == '  File "properties/support/harness/scripted.py", line 1, in check'
    )
    assert headline(result.error) == "ZeroDivisionError: of ours"
    assert (result.finding is not None) is (which == "the one of the clean build")


def test_an_error_of_the_explainer_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding keeps its violations, and gets the traceback. The process is not used again."""

    def explain(*_: Any) -> None:
        raise RuntimeError("cannot explain")

    monkeypatch.setattr("paritybit.harness.campaigns.locksteps.explanation", explain)
    result = ended(lambda *_: violating(TARGET), of_clean=clean())
    assert (result.status, result.error, result.spoiled) == (Status.CAUGHT, None, True)
    assert result.finding is not None
    assert result.finding.explanation is None
    assert [found.property for found in result.finding.violations] == [TARGET]
    error = result.unexplained
    assert error is not None and error == result.finding.error
    assert "in explain\n" in error
    assert headline(error) == "RuntimeError: cannot explain"
    assert 'File "/' not in error


def test_an_error_in_counting_the_reach_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("cannot count")

    caught = ended(lambda *_: violating(TARGET), of_clean=clean())
    monkeypatch.setattr(tasks, "run_task", lambda *_, **__: caught)
    monkeypatch.setattr(tasks, "kept_lockstep", fail)
    result = run_in_turn(caught.task)
    assert (result.status, result.spoiled) == (Status.CAUGHT, True)
    assert result.unexplained is not None and "cannot count" in result.unexplained


def without(count: str) -> Outcome:
    """Return the outcome of a clean playing of which one count is nothing."""
    nothing: Any = Counter() if count == "events" else 0
    return replace(clean(), **{count: nothing})


HARMLESS = TRIAL.with_bug("loc_memo_warning.entry")
"""A bug that affects no runner."""

ENDS: dict[str, tuple[TrialConfig, Outcome, Outcome, Status]] = {
    "seen on the clean build too": (
        BROKEN,
        violating(TARGET),
        violating("log_hygiene"),
        Status.CLEAN_IS_RED,
    ),
    "seen as another property": (BROKEN, violating("log_hygiene"), clean(), Status.WRONG_PROPERTY),
    "not seen": (BROKEN, clean(), clean(), Status.MISSED),
    "a harmless bug, not seen": (HARMLESS, clean(), clean(), Status.UNAFFECTED),
    "a harmless bug, seen": (HARMLESS, violating(TARGET), clean(), Status.AFFECTED_AFTER_ALL),
    "a clean build": (TRIAL, clean(), clean(), Status.GREEN),
    "a clean build that violates": (TRIAL, violating(TARGET), clean(), Status.RED),
    "nothing replayed": (TRIAL, without("replays"), clean(), Status.VACUOUS),
    "nothing padded": (TRIAL, without("padded_replays"), clean(), Status.VACUOUS),
    "nothing held to the oracle": (TRIAL, without("events"), clean(), Status.VACUOUS),
    "a harmless bug, nothing padded": (
        HARMLESS,
        without("padded_replays"),
        clean(),
        Status.VACUOUS,
    ),
}
"""What is on trial, what every playing of it gives and of the clean build, and how it ends."""


@pytest.mark.parametrize("which", ENDS)
def test_the_status_of_a_task_follows_from_its_playings(which: str) -> None:
    trial, outcome, of_clean, status = ENDS[which]
    build = locksteps(lambda *_: outcome, of_clean if trial.bugs else outcome)
    assert run_task(Task(trial, 0, 3), build, showing).status is status


def test_a_finding_that_its_shrunk_schedule_does_not_show_is_not_reproduced() -> None:
    def script(lockstep: Scripted, _: Schedule) -> Outcome:
        return violating(TARGET if lockstep.played < 4 else "log_hygiene")

    assert ended(script, of_clean=clean()).status is Status.NOT_REPRODUCED


@pytest.mark.parametrize("trial", [TRIAL, BROKEN, HARMLESS], ids=["clean", "broken", "harmless"])
def test_a_finding_that_no_fresh_process_shows_is_undeclared_state(trial: TrialConfig) -> None:
    """Whatever is on trial; what was drawn is kept with what was played before it."""

    def script(lockstep: Scripted, _: Schedule) -> Outcome:
        return violating(TARGET) if lockstep.played > 2 else clean()

    task = Task(trial, 0, 9)
    result = run_task(task, locksteps(script, of_clean=None), lambda _: clean())
    assert (result.status, result.error) == (Status.UNDECLARED_STATE, None)
    assert not result.status.expected
    finding = result.finding
    assert finding is not None and finding.undeclared
    assert finding.case.schedule == result.hunt_result.drawn
    assert finding.case.history == result.hunt_result.before
    assert len(finding.case.history) == 2
    seen = [violation.property for violation in finding.violations]
    assert seen == [TARGET, "declared_state"]


def test_a_fresh_process_that_gives_no_outcome_is_a_failure() -> None:
    def play(_: FreshPlaying) -> Outcome:
        raise PlayingFailedError(ERROR)

    result = ended(lambda *_: violating(TARGET), play)
    assert (result.status, result.error) == (Status.FAILED, ERROR)


def test_a_clean_build_that_warned_while_it_was_captured_is_not_green() -> None:
    def build(trial: TrialConfig) -> Any:
        lockstep = Scripted(trial, lambda *_: clean())
        lockstep.capture_warnings = ("loc changed",)
        return lockstep

    assert run_task(Task(TRIAL, 0, 3), build).status is Status.CAPTURE_WARNED


def test_a_lost_device_is_a_finding_of_its_own() -> None:
    def script(lockstep: Scripted, schedule: Schedule) -> Outcome:
        outcome = violating("captured_path")
        outcome.device_lost = True
        raise DeviceLostError(schedule, outcome)

    result = ended(script)
    assert (result.status, result.spoiled, result.error) == (Status.DEVICE_LOST, True, None)
    assert result.finding is not None
    assert result.finding.violations[0].property == "captured_path"


def test_a_task_without_a_result_has_failed_with_its_error() -> None:
    task = Task(TRIAL, 0, 9)
    result = result_of(Ended(task, 7.0, error=ERROR))
    assert (result.status, result.error, result.seconds) == (Status.FAILED, ERROR, 7.0)
    whole = Result(task, Status.GREEN, HuntResult(), None, 0, 1.0)
    assert result_of(Ended(task, 7.0, whole)) is whole


def run_of(*statuses: Status, finding: Finding | None = None) -> Run:
    """Return a run whose tasks ended so; `finding` is of what failed."""
    run = Run(RunConfig("cpu"))
    for place, status in enumerate(statuses):
        task = Task(TRIAL, place, 1)
        kept = finding if status is Status.FAILED else None
        run.results.append(Result(task, status, HuntResult(), kept, 0, 0.0))
    return run


def test_a_run_is_not_green_without_a_result_of_each_task_that_was_planned() -> None:
    run = Run(RunConfig("cpu", (("swa_pad", "decode"),)))
    events = Counter(dict.fromkeys(run.settings.required_events, 1))
    for task in plan(run.settings):
        status = Status.GREEN if task.bug is None else Status.CAUGHT
        run.results.append(Result(task, status, HuntResult(events=events), None, 0, 0.0))
    assert (verdict(run)[0], run.undecided) == ("green", False)
    events[run.settings.required_events[0]] = 0
    assert (verdict(run)[0], run.undecided) == ("red", True)
    hunted = run.results[-1]
    reached = replace(hunted.hunt_result, events=Counter(run.settings.required_events))
    run.results[-1] = replace(hunted, hunt_result=reached)
    assert (verdict(run)[0], run.undecided) == ("red", True)  # What a hunt reached does not count.
    events[run.settings.required_events[0]] = 1
    run.results.pop()
    outcome, message = verdict(run)
    assert (outcome, run.undecided) == ("red", True)
    assert message.endswith(f"; 1 of {len(run.results) + 1} trials and hunts gave no result")


def test_what_is_left_open_is_no_verdict_unless_something_is_wrong_beside_it() -> None:
    """An error of ours, what tried too little, and tasks that were planned and gave no result."""
    task = Task(TrialConfig(), 0, 1)
    found = found_by(task, SCHEDULE, violating(TARGET), found=Explained(error=ERROR))
    assert run_of(Status.FAILED, Status.GREEN, Status.CAUGHT).undecided
    assert run_of(Status.VACUOUS, Status.FAILED).undecided
    assert run_of(Status.GREEN).undecided
    for wrong in (Status.RED, Status.MISSED, Status.DEVICE_LOST, Status.UNDECLARED_STATE):
        assert not run_of(Status.FAILED, Status.VACUOUS, wrong).undecided
    assert not run_of(Status.FAILED, finding=found).undecided


def test_a_hunt_that_plays_on_keeps_the_first_error() -> None:
    """No violation ends such a hunt."""
    errors = iter(["first", "second", None])
    lockstep: Any = Scripted(TRIAL, lambda *_: violating(error=next(errors)))
    hunt_result = play_all(lockstep, 0, 3)
    assert (hunt_result.schedules, hunt_result.error) == (3, "first")
    assert hunt_result.spoiled
    assert not hunt(Scripted(TRIAL, lambda *_: clean()), None, 0, 1).spoiled  # type: ignore[arg-type]


def test_shrinking_ends_after_a_number_of_steps_with_what_still_fails() -> None:
    """However much there is to drop."""
    drawn = Schedule(tuple(Admit(length, length) for length in range(1, 30)))

    def long_and_failing(_: Scripted, schedule: Schedule) -> Outcome:
        outcome = violating(*["kv_parity"] * (len(schedule.steps) > 9))
        outcome.steps = SHRINKING_STEPS // 4
        return outcome

    lockstep = Scripted(TrialConfig(), long_and_failing)
    found = HuntResult(schedule=drawn)
    found.shrink(lockstep, "kv_parity")  # type: ignore[arg-type]
    assert lockstep.played == 4
    assert found.schedule is not None and 9 < len(found.schedule.steps) < len(drawn.steps)


def test_a_case_that_an_error_of_ours_ended_is_neither_as_it_says_nor_otherwise() -> None:
    named = Named(0, "case", Case(BROKEN, SCHEDULE, TARGET, 0, ()))
    failed = judged(named, violating(TARGET, error=ERROR))
    assert (failed.as_said, failed.message) == (False, "ZeroDivisionError: of ours")
    assert (failed.error, failed.spoiled) == (ERROR, True)
    assert replayed(Ended(named, 1.0, error=ERROR)) == failed
    said = Replayed("case", as_said=True, message=TARGET)
    assert judged(named, violating(TARGET)) == said
    assert replayed(Ended(named, 1.0, said)) is said


def test_given_schedules_are_played_before_any_is_drawn() -> None:
    """They count among those that were played, and the first that fails ends the hunt."""
    one, other = Schedule((Admit(1, 1),)), Schedule((Admit(2, 2),))

    def fails(_: Scripted, schedule: Schedule) -> Outcome:
        return violating("kv_parity") if schedule == other else clean()

    lockstep: Any = Scripted(TrialConfig(), fails)
    found = hunt(lockstep, None, 0, 5, first=(one, other), shrinks=False)
    assert (found.schedule, found.schedules) == (other, 2)
    found = hunt(lockstep, None, 0, 5, first=(one,), shrinks=False)
    assert (found.schedule, found.schedules) == (None, 6)
