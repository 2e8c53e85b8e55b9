"""What a run plans: the clean trials first, every runner, scheme and preset, then every hunt."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from itertools import product

import pytest
from paritybit.harness.campaigns.hunt import draw
from paritybit.harness.campaigns.regress import (
    CLEAN_SCHEDULES,
    FEWEST_CLEAN,
    RunConfig,
    all_hunts,
    clean_tasks,
    order,
    plan,
)
from paritybit.harness.campaigns.scenes import ground_of, share_of_scenes
from paritybit.harness.campaigns.task import Task
from paritybit.harness.checks.expectations import unaffected_reason
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TURNS
from paritybit.harness.lockstep.pair import subject_alone
from paritybit.harness.schedules.boundaries import EVERYONE_LEAVES, Steps, rows
from paritybit.harness.schedules.buckets import SMALLEST, SMALLEST_TOKENS
from paritybit.harness.schedules.coverage import (
    BEGUN_BESIDE,
    LONGEST,
    OF_ONE_BRANCH,
    most_together,
    of_one_branch,
)
from paritybit.harness.schedules.schedule import Admit, Prefill, Schedule
from paritybit.reference.config import PRESETS, SPECULATION
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS, engine_runners
from paritybit.subjects.toggles import LocationScheme

from properties.support.harness.planned import Planned

SPECULATING = {"target_verify", "eagle_draft", "eagle_draft_extend", "frozen_kv_mtp"}


def usual(task: Task, settings: RunConfig) -> bool:
    """Whether a task's steps do not overlap, sizes are usual, and drafts at most are chains.

    They are in one trial of a runner that speculates.
    """
    trial = task.trial
    chained = settings.chained.get(trial.runner) is trial.scheme
    in_order = not trial.overlap and trial.buckets != SMALLEST
    return in_order and trial.topk == (1 if chained else SPECULATION.topk)


def test_a_run_plans_every_runner_scheme_and_preset() -> None:
    """Clean ones first, each runner with every location scheme and preset once, then every hunt."""
    settings = RunConfig("cpu")
    tasks = plan(settings)
    clean = [task for task in tasks if task.bug is None]
    assert tasks[: len(clean)] == clean
    in_order = [task for task in clean if usual(task, settings)]
    generated = [task.trial for task in in_order]
    assert sorted((trial.runner, trial.scheme) for trial in generated) == sorted(
        product(RUNNERS, LocationScheme)
    )
    presets = sorted((trial.runner, trial.preset) for trial in generated)
    assert presets == sorted(product(RUNNERS, PRESETS))
    assert {(trial.page_size, trial.dtype) for trial in generated} == set(TURNS)
    hunted = [(task.trial.bug, task.trial.runner) for task in tasks[len(clean) :]]
    assert list(dict.fromkeys(hunted)) == list(all_hunts())


def test_a_run_of_all_runners_tries_one_of_each_engine_at_the_edges() -> None:
    """Of one row, and up to the longest context, which the run must have reached."""
    settings = RunConfig("cpu")
    found = [task for task in plan(settings) if task.trial.buckets == SMALLEST]
    tried = {engine_runners(task.trial.runner) for task in found}
    assert tried == {engine_runners(name) for name in ONE_PER_ENGINE}
    assert len(tried) == len(found)
    assert all(task.bug is None and task.trial.token_buckets == SMALLEST_TOKENS for task in found)
    assert {LONGEST, "decode: bucket 1 full"} <= set(settings.required_events)
    one = RunConfig("cpu", tuple(pair for pair in all_hunts() if pair[1] == "decode"))
    assert not one.at_edges and LONGEST not in one.required_events


@pytest.mark.parametrize(
    ("steps", "begun"),
    [
        ((Admit(6, 2), Prefill((3,), 9)), 1),
        ((Prefill((6, 3), 9),), 0),
        ((Prefill((6, 6), 2), Prefill((), 9)), 0),
    ],
    ids=["beside another", "together", "both continue"],
)
def test_a_prompt_must_begin_beside_one_that_continues(steps: Steps, begun: int) -> None:
    assert BEGUN_BESIDE in RunConfig("cpu").required_events
    trial = RunConfig("cpu").of_one_branch[0]
    assert Planned(trial).play(Schedule(steps))[BEGUN_BESIDE] == begun


@pytest.mark.parametrize("hunted", ["everything", "masked_values_loaded", "loc_memo_capture"])
def test_drafts_are_chains_in_one_clean_trial_of_each_runner_that_speculates(hunted: str) -> None:
    """Where nothing is hunted, if there is such a scheme; and its replays are required then."""
    hunts = tuple(pair for pair in all_hunts() if hunted in {"everything", pair[0]})
    settings = RunConfig("cpu", hunts)
    usual_ones = (task for task in clean_tasks(settings) if usual(task, settings) and task.first)
    clean = [task for task in usual_ones if task.trial.topk == 1]
    free = SPECULATING if hunted == "everything" else set()
    assert sorted(task.trial.runner for task in clean) == sorted(free)
    asked = {event for event in settings.required_events if event.endswith("of one branch")}
    assert asked == {of_one_branch(name, what) for name in free for what in OF_ONE_BRANCH}
    on_trial = {(name, BUGS[bug].scheme) for bug, name in hunts}
    assert not on_trial & {(task.trial.runner, task.trial.scheme) for task in clean}


def test_the_clean_trials_of_a_runner_play_all_scenes_first() -> None:
    """And the run must have prefilled as many requests as a batch holds, by each runner."""
    settings = RunConfig("cpu")
    for runner in settings.runners:
        tasks = [task for task in clean_tasks(settings) if task.trial.runner == runner]
        trials = {task.trial: task.first for task in tasks if task.first and usual(task, settings)}
        assert trials == {trial: (share_of_scenes(trial, settings.schemes),) for trial in trials}
        (every,) = {rows(ground_of(replace(trial, topk=SPECULATION.topk))) for trial in trials}
        begun = sum(scenes.steps.count(EVERYONE_LEAVES[1]) for (scenes,) in trials.values())
        others = len(engine_runners(runner)) - 1
        assert begun == len(every) + others
        if RUNNERS[runner].token_buckets:
            assert most_together(runner) in settings.required_events


def test_a_clean_trial_plays_no_more_schedules_than_a_hunt_was_asked_for() -> None:
    """No two have one seed. A run of few trials plays more in each."""
    alone = tuple(pair for pair in all_hunts() if pair[1] == "decode")
    for hunts, asked, played in (
        (all_hunts(), 50, FEWEST_CLEAN),
        (all_hunts(), FEWEST_CLEAN - 1, FEWEST_CLEAN - 1),
        (alone, 50, CLEAN_SCHEDULES // len(LocationScheme)),
    ):
        settings = RunConfig("cpu", hunts, examples=asked)
        tasks = [task for task in plan(settings) if task.bug is None and usual(task, settings)]
        assert {task.examples for task in tasks} == {played}
        assert len({task.seed for task in tasks}) == len(tasks)


def test_a_bug_is_hunted_on_the_clean_trial_of_its_runner_and_scheme() -> None:
    """What a hunt is held against was itself tried, with nothing but the bug changed."""
    settings = RunConfig("cpu")
    tasks = plan(settings)
    clean = {
        (task.trial.runner, task.trial.scheme, task.trial.topk): task.trial
        for task in tasks
        if task.bug is None and (usual(task, settings) or task.trial.topk == 1)
    }
    hunts = [task for task in tasks if task.bug is not None]
    assert hunts
    for task in hunts:
        assert task.bug is not None
        in_order = replace(task.clean_trial, overlap=False)
        assert in_order == clean[task.trial.runner, task.bug.scheme, task.trial.topk]
        assert task.trial.topk == task.bug.topk
        assert task.trial.overlap is task.bug.overlap


def planned_alike() -> list[str]:
    """Return a bug of each kind: a plan depends on nothing else of the bugs that it hunts."""
    kinds: dict[Hashable, str] = {}
    for name, bug in BUGS.items():
        runners = [runner for hunted, runner in all_hunts() if hunted == name]
        affected = tuple((one, unaffected_reason(bug, one) is None) for one in runners)
        kinds.setdefault((affected, bug.scheme, bug.topk, bug.overlap), name)
    return list(kinds.values())


@pytest.mark.parametrize("name", planned_alike())
def test_a_run_of_one_bug_tries_clean_what_its_hunts_are_held_to_and_little_else(name: str) -> None:
    """With the location scheme of the bug, and all that a run of its runners must reach."""
    hunts = tuple(pair for pair in all_hunts() if pair[0] == name)
    settings = RunConfig("cpu", hunts)
    tasks = plan(settings)
    clean = [task for task in tasks if task.bug is None]
    in_order = {task.trial for task in clean if not task.trial.overlap}
    held_to = {replace(task.clean_trial, overlap=False) for task in tasks if task.bug is not None}
    assert held_to <= in_order
    usual_ones = {task.trial for task in clean if usual(task, settings)}
    assert in_order - usual_ones <= held_to
    assert len(usual_ones) == len(settings.runners)
    generated = [task for task in clean if usual(task, settings)]
    assert all(task.first and task.examples for task in generated)
    assert any(task.trial.overlap for task in clean) is BUGS[name].overlap


def test_a_run_begins_with_clean_trials_and_ends_with_hunts_that_detect_nothing() -> None:
    hunts = (("loc_memo_warning.entry", "decode"), ("swa_pad", "decode"))
    ordered = sorted(plan(RunConfig("cpu", hunts)), key=order)
    assert [task.bug is None for task in ordered] == sorted(
        (task.bug is None for task in ordered), reverse=True
    )
    assert ordered[-1].trial.bug == "loc_memo_warning.entry"
    assert ordered[-2].trial.bug == "swa_pad"


@pytest.mark.parametrize("name", ["window_indices_width", "draft_lists_of_one_branch"])
def test_a_run_of_one_bug_reaches_all_states_that_it_must(name: str) -> None:
    hunts = tuple(pair for pair in all_hunts() if pair[0] == name)
    settings, reached = RunConfig("cpu", hunts), Counter[str]()
    for task in clean_tasks(settings):
        lockstep = Lockstep(task.trial, (), engines=subject_alone)
        schedules = list(task.first)
        draw(task.trial, schedules.append, task.seed, task.examples)
        for schedule in schedules:
            reached += lockstep.play(schedule).events
    assert [event for event in settings.required_events if not reached[event]] == []
