"""What a run plans, and the verdict on its results."""

from dataclasses import replace
from itertools import product

import pytest
from msgspec import structs
from paritybit.harness.campaigns.plan import (
    EXAMPLES,
    NOTHING_EXPECTED,
    RunConfig,
    all_hunts,
    clean_tasks,
    hunts_of,
    one_hunt_per_bug,
    plan,
)
from paritybit.harness.campaigns.run import Run, verdict
from paritybit.harness.campaigns.search import SearchResult
from paritybit.harness.campaigns.task import Task, row_of
from paritybit.harness.lockstep.config import TURNS
from paritybit.harness.records.schema import Status, TrialRow
from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

EVERYTHING = RunConfig("cpu")
ONE = RunConfig("cpu", (("swa_pad", "decode"),))


def test_a_run_tries_every_runner_scheme_and_preset_and_every_bug_on_every_runner() -> None:
    tasks = plan(EVERYTHING)
    clean = [task.trial for task in tasks if task.bug is None]
    usual = [trial for trial in clean if not trial.overlap]
    assert sorted((one.runner, one.scheme) for one in usual) == sorted(
        product(RUNNERS, LocationScheme)
    )
    presets = sorted((one.runner, one.preset) for one in usual)
    assert presets == sorted(product(RUNNERS, PRESETS))
    assert {(one.page_size, one.dtype) for one in usual} == set(TURNS)
    hunts = tuple((task.trial.bug, task.trial.runner) for task in tasks if task.bug is not None)
    assert hunts == all_hunts()
    assert len({task.name for task in tasks}) == len(tasks)


def test_a_run_of_everything_tries_overlap_too() -> None:
    clean = [task.trial for task in clean_tasks(EVERYTHING)]
    assert [one.runner for one in clean if one.overlap] == ["decode", "frozen_kv_mtp"]


def test_the_fewer_trials_a_run_has_the_more_schedules_each_gets() -> None:
    """No two clean trials have one seed. A longer run has more of all."""
    tasks = plan(EVERYTHING)
    clean = [task for task in tasks if task.bug is None]
    assert len({task.seed for task in clean}) == len(clean)
    assert {task.examples for task in clean} == {EXAMPLES // NOTHING_EXPECTED}
    assert {task.examples for task in tasks if task.target} == {EXAMPLES}
    assert clean_tasks(ONE)[0].examples > clean[0].examples
    longer = plan(replace(EVERYTHING, examples=5 * EXAMPLES))
    assert all(more.examples >= 5 * one.examples for more, one in zip(longer, tasks, strict=True))


def test_a_bug_without_a_runner_is_hunted_on_all_runners_that_it_affects() -> None:
    affected = tuple(BUGS["swa_pad"].expected)
    assert hunts_of(("swa_pad", "swa_pad@decode"), ()) == tuple(
        ("swa_pad", one) for one in affected
    )
    assert hunts_of(("swa_pad",), ("decode",)) == (("swa_pad", "decode"),)
    assert hunts_of((), ()) == all_hunts()
    for bugs in (("nonsense",), ("swa_pad@nonsense",), ("swa_pad@cpu_graph",)):
        with pytest.raises(ValueError, match=r"valid|nearest"):
            hunts_of(bugs, ())


def test_the_suite_hunts_each_bug_on_one_runner_and_all_runners_occur() -> None:
    hunts = one_hunt_per_bug()
    assert {bug for bug, _ in hunts} == {
        name for name, bug in BUGS.items() if bug.expected and "." not in name
    }
    assert len({bug for bug, _ in hunts}) == len(hunts)
    assert {runner for _, runner in hunts} == set(RUNNERS)


def result_of(task: Task, status: Status) -> TrialRow:
    """Return the result of a task."""
    found = SearchResult(schedules=1, steps=9, replays=3, padded_replays=2)
    return row_of(task, status, found, None, 1.0)


def green_run(settings: RunConfig) -> Run:
    """Return a run in which all is as expected."""
    run = Run(settings)
    for task in run.tasks:
        status = Status.GREEN if task.bug is None else Status.CAUGHT
        run.results.append(result_of(task, status))
    return run


def test_a_run_is_green_only_with_a_result_of_each_task() -> None:
    run = green_run(ONE)
    assert (verdict(run)[0], run.undecided) == ("green", True)
    lost = run.results.pop()
    assert (verdict(run)[0], run.undecided) == ("red", True)
    assert verdict(run)[1].endswith(f"; 1 of {len(run.tasks)} trials and hunts gave no result")
    run.results.append(lost)
    run.interrupted = True
    assert verdict(run)[1].endswith("ended as expected")
    run.interrupted = False
    run.tasks = run.tasks[1:]
    run.results = run.results[1:]
    assert verdict(run)[0] == "green"
    run.broken = True
    assert (verdict(run)[0], run.undecided) == ("red", True)
    run.tasks, run.results, run.broken = [], [], False
    assert (verdict(run)[0], run.undecided) == ("red", True)


@pytest.mark.parametrize(
    ("status", "undecided"),
    [
        (Status.FAILED, True),
        (Status.VACUOUS, True),
        (Status.RED, False),
        (Status.MISSED, False),
        (Status.DEVICE_LOST, False),
        (Status.UNDECLARED_STATE, False),
    ],
)
def test_an_internal_error_is_no_verdict_and_anything_wrong_is_one(
    status: Status, undecided: bool
) -> None:
    run = green_run(ONE)
    run.results[0] = structs.replace(run.results[0], status=status)
    assert (verdict(run)[0], run.undecided) == ("red", undecided)
