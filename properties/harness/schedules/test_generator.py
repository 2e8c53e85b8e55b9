"""The generator has teeth: it reaches every required state, and the same seed draws the same."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.campaigns.hunt import for_each_drawn
from paritybit.harness.campaigns.regress import (
    Run,
    RunConfig,
    all_hunts,
    unreached,
    verdict,
)
from paritybit.harness.campaigns.task import Result, Task, run_task
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.buckets import BUCKETS, FILLINGS
from paritybit.harness.schedules.coverage import (
    Coverage,
    of_one_branch,
    required_events,
)
from paritybit.harness.schedules.generate import schedules
from paritybit.harness.schedules.schedule import (
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Schedule,
    Step,
    Verify,
    idle_modes,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS, engine_runners

from properties.support.harness.planned import Planned

SEEDS, EACH = 2, 15
"""Seeds, and how many schedules of each are looked at."""

OFTEN = 4
"""Schedules, all first ones left out, in which each bucket is filled in each way at least."""


def draw(runner: str, seed: int, preset: str = "gpt_oss") -> list[Schedule]:
    """Return what one seed draws for the trial of a runner."""
    trial = TrialConfig(runner, preset)
    strategy = schedules(
        trial.model, trial.buckets, trial.token_buckets, trial.modes, RUNNERS[runner].mode
    )
    found: list[Schedule] = []
    for_each_drawn(strategy, found.append, seed, EACH)
    return found


drawn = cache(draw)


@pytest.mark.parametrize(
    ("runner", "preset"),
    list(zip(ONE_PER_ENGINE, cycle(PRESETS), strict=False)),
    ids=ONE_PER_ENGINE,
)
def test_generated_schedules_reach_every_required_state(runner: str, preset: str) -> None:
    """Ten schedules of each of two seeds, by what they plan."""
    world, events = Planned(TrialConfig(runner, preset)), Counter[str]()
    for seed in range(2):
        for schedule in drawn(runner, seed, preset)[:10]:
            events += world.play(schedule)
    assert [event for event in required_events([runner]) if not events[event]] == []


def test_what_must_be_reached_follows_from_the_engine() -> None:
    """What speculation reaches is asked of engines that speculate, replays of every runner."""
    by_runner = {runner: set(required_events([runner])) for runner in RUNNERS}
    for runner, events in by_runner.items():
        engine = engine_runners(runner)
        speculates = any(other.mode is Mode.TARGET_VERIFY for other in engine)
        assert ("tree of a draft model" in events) is speculates
        replays = {event.split(":")[0] for event in events if event.endswith(": padded replay")}
        assert replays == {other.name for other in engine}
    assert set(required_events(RUNNERS)) == set().union(*by_runner.values())
    assert len(set(required_events(RUNNERS))) == len(required_events(RUNNERS))


REPLAYS: tuple[tuple[tuple[int, int], int, set[str], set[str]], ...] = (
    ((4, 2), 2, {"padded replay", "several padded rows", "batch of several rows"}, set()),
    ((4, 4), 1, {"replay without padding", "batch grew again in its bucket"}, {"full"}),
    ((2, 1), 1, {"padded replay", "smaller bucket after a larger"}, {"one short"}),
    (
        (4, 3),
        3,
        {"padded replay", "larger bucket after a smaller", "batch of several rows"},
        {"one short"},
    ),
    ((4, 4), 1, {"replay without padding", "batch grew again in its bucket"}, {"full"}),
    (
        (4, 0),
        0,
        {"padded replay", "several padded rows", "idle replay"},
        {"padded after full"},
    ),
)
"""Buckets and live sizes of replays in a row, the requests of each, and what each reaches."""


def replay(runner: str, bucket: int, live_size: int) -> Any:
    """Return what is counted of a replay."""
    padded = live_size < bucket
    return SimpleNamespace(runner=runner, bucket=bucket, live_size=live_size, padded=padded)


def test_what_a_replay_reaches_is_counted() -> None:
    events: Counter[str] = Counter()
    coverage = Coverage(events, topk=2)
    for (bucket, live_size), requests, reached, filled_as in REPLAYS:
        events.clear()
        coverage.see(replay("decode", bucket, live_size), requests)
        shrank = {"batch shrank in its bucket"} if live_size == 0 else set()
        assert {event for event in events if ":" not in event} == reached | shrank
        padded = {"decode: padded replay"} if bucket > live_size else set()
        filled = {f"decode: bucket {bucket} {how}" for how in filled_as}
        named = {event for event in events if ":" in event}
        assert named == {f"decode: bucket {bucket}", "decode: replay"} | padded | filled
    coverage.see(replay("cpu_graph", 2, 2), 1)
    assert events["runner after another"] == 1


@pytest.mark.parametrize(
    ("topk", "runner", "requests", "reached"),
    [
        (1, "eagle_draft", 2, {"replay", "padded replay"}),
        (1, "target_verify", 4, {"replay"}),
        (1, "eagle_draft_extend", 0, set()),
        (1, "decode", 2, set()),
        (2, "frozen_kv_mtp", 2, set()),
    ],
)
def test_a_replay_of_drafts_of_one_branch_is_counted(
    topk: int, runner: str, requests: int, reached: set[str]
) -> None:
    """Of a runner of speculation, and not where it idles."""
    events: Counter[str] = Counter()
    Coverage(events, topk).see(replay(runner, 4, requests), requests)
    found = {event for event in events if event.endswith("of one branch")}
    assert found == {of_one_branch(runner, what) for what in reached}


def filled(runner: str) -> list[str]:
    """Return how every bucket of a runner must have been filled."""
    return [event for event in required_events([runner]) if ": bucket " in event]


def too_rare(runner: str, schedules: list[Schedule], page_size: int, times: int = 1) -> list[str]:
    """Return the ways to fill a bucket that fewer than `times` schedules reach, by their plans."""
    world, often = Planned(TrialConfig(runner, page_size=page_size)), Counter[str]()
    rare = filled(runner)
    for schedule in schedules:
        often.update(set(+world.play(schedule)))
        rare = [event for event in rare if often[event] < times]
        if not rare:
            break
    return rare


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_bucket_is_full_one_short_and_padded_after_it_was_full(runner: str) -> None:
    """In the first schedule of any seed, the simplest, and in some of those after it.

    Of several seeds: what one seed draws in a row is much alike.
    """
    others: list[Schedule] = []
    for seed in range(SEEDS):
        first, *rest = drawn(runner, seed)
        others += rest
    for page_size in (1, 4):
        assert too_rare(runner, [first], page_size) == []
    assert too_rare(runner, others, page_size, OFTEN) == []
    assert len(filled(runner)) == len(BUCKETS) * len(FILLINGS)


def steps_of(runner: str) -> list[Step]:
    """Return the steps of all schedules that some seeds draw for the trial of a runner."""
    schedules = [schedule for seed in range(SEEDS) for schedule in drawn(runner, seed)]
    return [step for schedule in schedules for step in schedule.steps]


@pytest.mark.parametrize("runner", ONE_PER_ENGINE)
def test_only_what_the_engine_can_do_is_drawn(runner: str) -> None:
    """Every step that drives a mode is drawn where there is a runner for it, and nowhere else."""
    modes = TrialConfig(runner).modes
    steps = {type(step) for step in steps_of(runner)}
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
    under_test, modes = RUNNERS[runner].mode, idle_modes(TrialConfig(runner).modes)
    idles = [step for step in steps_of(runner) if isinstance(step, Idle)]
    idle = Counter(modes[step.pick % len(modes)] for step in idles)
    assert idle.most_common(1)[0][0] is under_test


@cache
def of_one_size() -> Result:
    """Return what one schedule of a trial of one size gives, which leaves much unreached."""
    trial = TrialConfig("cpu_graph", buckets=(4,), token_buckets=(12,))
    return run_task(Task(trial, 0, 1))


def test_a_toothless_generator_is_found_out() -> None:
    """What no clean trial reached is named."""
    run = Run(RunConfig("cpu", all_hunts(("cpu_graph",))))
    run.results.append(of_one_size())
    reached = run.results[0].hunt_result.events
    missing = [event for event in required_events(["cpu_graph"]) if not reached[event]]
    assert unreached(run) == missing != []
    said = f"never reached: {', '.join(missing[:3])} and {len(missing) - 3} more"
    assert verdict(run)[0] == "red"
    assert verdict(run)[1].endswith(said)


def test_what_trials_that_failed_never_reached_is_not_told_beside_their_failure() -> None:
    """They end at what they find, which is what matters."""
    run = Run(RunConfig("cpu", all_hunts(("cpu_graph",))))
    run.results.append(replace(of_one_size(), status=Status.RED))
    assert unreached(run)
    assert verdict(run)[0] == "red"
    assert "never reached" not in verdict(run)[1]


def test_the_same_seed_draws_the_same_schedules() -> None:
    assert draw("decode", 0) == drawn("decode", 0) != drawn("decode", 1)
