"""The generator has teeth: it reaches every required state, and the same seed draws the same."""

from collections import Counter
from itertools import product

import pytest

from harness.campaigns.hunt import draw, hunt, play_all
from harness.campaigns.regress import (
    CLEAN_SCHEDULES,
    FEWEST_CLEAN,
    SHAPES,
    Run,
    RunConfig,
    all_hunts,
    plan,
    unreached,
)
from harness.campaigns.task import Source, Task, run_task
from harness.checks.expectations import unaffected_reason
from harness.checks.play import Lockstep
from harness.lockstep.config import TrialConfig
from harness.schedules.coverage import required_events
from harness.schedules.schedule import (
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Schedule,
    Verify,
    idle_modes,
)
from reference.batch import Mode
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.runners import RUNNERS, engine_runners
from subjects.toggles import LocationScheme

DRAWN = 30
LINEUPS = ("decode", "breakable", "cpu_graph")
"""A runner of each line-up."""

SURVEYED = (
    *((preset, "decode") for preset in PRESETS),
    ("gpt_oss", "breakable"),
    ("mimo", "cpu_graph"),
)


def trial_of(runner: str, preset: str, device: str) -> TrialConfig:
    """Return a trial of a runner on the device, or on the CPU if it lives nowhere else."""
    return TrialConfig(runner, preset, device="cpu" if runner == "cpu_graph" else device)


def drawn(lockstep: Lockstep, seed: int, count: int = DRAWN) -> list[Schedule]:
    """Return what one seed draws."""
    found: list[Schedule] = []
    draw(lockstep, found.append, seed, count)
    return found


@pytest.mark.parametrize(("preset", "runner"), SURVEYED)
def test_generated_schedules_reach_every_required_state(
    preset: str, runner: str, device: str
) -> None:
    """Thirty schedules, a third of them for each of three seeds."""
    lockstep = Lockstep(trial_of(runner, preset, device), frozenset())
    events: Counter[str] = Counter()
    for seed in range(3):
        events += play_all(lockstep, seed, DRAWN // 3).events
    assert [event for event in required_events([runner]) if not events[event]] == []


def test_what_must_be_reached_follows_from_the_line_up() -> None:
    """What speculation reaches is asked of engines that speculate, replays of every runner."""
    by_runner = {runner: set(required_events([runner])) for runner in RUNNERS}
    for runner, events in by_runner.items():
        engine = engine_runners(runner)
        speculates = any(each.mode is Mode.TARGET_VERIFY for each in engine)
        assert ("tree of a draft model" in events) is speculates
        replays = {event.split(":")[0] for event in events if event.endswith(": padded replay")}
        assert replays == {each.name for each in engine}
    assert set(required_events(RUNNERS)) == set().union(*by_runner.values())
    assert len(set(required_events(RUNNERS))) == len(required_events(RUNNERS))


@pytest.mark.parametrize("runner", LINEUPS)
def test_only_what_the_engine_can_do_is_drawn(runner: str) -> None:
    """Every step that drives a mode is drawn where there is a runner for it, and nowhere else."""
    lockstep = Lockstep(TrialConfig(runner), frozenset())
    modes = lockstep.trial.modes
    steps = {type(step) for each in drawn(lockstep, 1) for step in each.steps}
    drives = {
        Decode: {Mode.DECODE},
        Draft: {Mode.DRAFT, Mode.FROZEN_DRAFT},
        Verify: {Mode.TARGET_VERIFY},
        DraftExtend: {Mode.DRAFT_EXTEND},
    }
    assert {step: step in steps for step in drives} == {
        step: bool(driven & modes) for step, driven in drives.items()
    }


@pytest.mark.parametrize("runner", ["target_verify", "eagle_draft", "frozen_kv_mtp"])
def test_the_runner_on_trial_idles_most(runner: str) -> None:
    lockstep = Lockstep(TrialConfig(runner), frozenset())
    under_test, modes = RUNNERS[runner].mode, idle_modes(lockstep.trial.modes)
    steps = [step for each in drawn(lockstep, 2) for step in each.steps]
    idle = Counter(modes[step.pick % len(modes)] for step in steps if isinstance(step, Idle))
    assert idle.most_common(1)[0][0] is under_test


def test_no_engine_extends_idly() -> None:
    """A padded prompt would be of no request; all else that has a runner idles."""
    for runner in RUNNERS:
        modes = TrialConfig(runner).modes
        assert set(idle_modes(modes)) == modes - {Mode.EXTEND}


def test_a_toothless_generator_is_found_out(device: str) -> None:
    """What no clean trial reached is named."""
    run = Run(RunConfig(device, all_hunts(("decode",))))
    run.results.append(run_task(Task(TrialConfig(device=device), Source.GENERATED, 0, 1)))
    reached = run.results[0].hunt_result.events
    assert unreached(run) == [each for each in required_events(["decode"]) if not reached[each]]
    assert unreached(run)


def test_a_run_plans_every_runner_era_and_preset() -> None:
    """Clean ones first, each runner once in every era and on every preset, then every hunt."""
    tasks = plan(RunConfig("cpu"))
    clean = [task for task in tasks if task.bug is None]
    assert tasks[: len(clean)] == clean
    generated = [task.trial for task in clean if task.source is Source.GENERATED]
    assert sorted((trial.runner, trial.scheme) for trial in generated) == sorted(
        product(RUNNERS, LocationScheme)
    )
    presets = sorted((trial.runner, trial.preset) for trial in generated)
    assert presets == sorted(product(RUNNERS, PRESETS))
    assert {(trial.page_size, trial.dtype) for trial in generated} == set(SHAPES)
    hunted = [(task.trial.bug, task.trial.runner) for task in tasks[len(clean) :]]
    assert list(dict.fromkeys(hunted)) == list(all_hunts())


def test_a_run_plays_traffic_on_each_runner_in_one_era() -> None:
    """The eras take turns; the trial is one that generated schedules are played on too."""
    tasks = [task for task in plan(RunConfig("cpu")) if task.bug is None]
    trials = [task.trial for task in tasks if task.source is Source.TRAFFIC]
    assert sorted(trial.runner for trial in trials) == sorted(RUNNERS)
    assert {trial.scheme for trial in trials} == set(LocationScheme)
    generated = {task.trial for task in tasks if task.source is Source.GENERATED}
    assert set(trials) <= generated


def test_a_clean_trial_plays_no_more_schedules_than_a_hunt_was_asked_for() -> None:
    """A run's clean trials share its schedules, down to a few each; no two have one seed."""
    alone = tuple(each for each in all_hunts() if each[1] == "decode")
    for hunts, asked, played in (
        (all_hunts(), 50, FEWEST_CLEAN),
        (all_hunts(), FEWEST_CLEAN - 1, FEWEST_CLEAN - 1),
        (alone, 50, CLEAN_SCHEDULES // len(LocationScheme)),
    ):
        settings = RunConfig("cpu", hunts, examples=asked)
        tasks = [task for task in plan(settings) if task.bug is None]
        generated = [task for task in tasks if task.source is Source.GENERATED]
        assert {task.examples for task in generated} == {played}
        assert len({task.seed for task in generated}) == len(generated)


def test_a_bug_is_hunted_on_the_clean_trial_of_its_runner_and_era() -> None:
    """What a hunt is held against was itself tried, with nothing but the bug changed."""
    tasks = plan(RunConfig("cpu"))
    clean = {
        (task.trial.runner, task.trial.scheme): task.trial for task in tasks if task.bug is None
    }
    hunts = [task for task in tasks if task.bug is not None]
    assert hunts
    for task in hunts:
        assert task.bug is not None
        assert task.clean_trial == clean[task.trial.runner, task.bug.scheme]
    traffic = [
        (task.bug.name, task.trial.runner)
        for task in hunts
        if task.bug is not None and task.source is Source.TRAFFIC
    ]
    assert traffic == [
        (name, runner)
        for name, runner in all_hunts()
        if BUGS[name].in_traffic and unaffected_reason(BUGS[name], runner) is None
    ]


def test_the_same_seed_draws_the_same_schedules(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), frozenset())
    assert drawn(lockstep, 5) == drawn(lockstep, 5)
    assert drawn(lockstep, 5) != drawn(lockstep, 6)


@pytest.mark.parametrize("runner", ["decode", "breakable"])
def test_the_same_seed_shrinks_to_the_same_schedule(runner: str, device: str) -> None:
    lockstep = Lockstep(TrialConfig(runner, device=device).with_bug("swa_int64"))
    first = hunt(lockstep, "index_contract", 3, DRAWN).schedule
    assert first is not None
    assert hunt(lockstep, "index_contract", 3, DRAWN).schedule == first
