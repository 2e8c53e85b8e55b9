"""The generator reaches every required state, and the same seed draws the same schedules."""

from collections import Counter
from functools import cache
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.campaigns import hunt
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.coverage import Coverage, required_events
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.config import PRESETS
from paritybit.subjects.runners import ONE_PER_ENGINE

from properties.support.harness.planned import Planned

EACH = 15


@cache
def drawn(runner: str, seed: int, preset: str = "gpt_oss") -> tuple[Schedule, ...]:
    """Return what one seed draws for the trial of a runner."""
    found: list[Schedule] = []
    hunt.draw(TrialConfig(runner, preset), found.append, seed, EACH)
    return tuple(found)


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
        {
            *("padded replay", "several padded rows", "idle replay"),
            "batch shrank in its bucket",
        },
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
    coverage = Coverage(events)
    for (bucket, live_size), requests, reached, filled_as in REPLAYS:
        events.clear()
        coverage.see(replay("decode", bucket, live_size), requests)
        assert {event for event in events if ":" not in event} == reached
        padded = {"decode: padded replay"} if bucket > live_size else set()
        filled = {f"decode: bucket {bucket} {how}" for how in filled_as}
        named = {event for event in events if ":" in event}
        assert named == {f"decode: bucket {bucket}", "decode: replay"} | padded | filled
    coverage.see(replay("cpu_graph", 2, 2), 1)
    assert events["runner after another"] == 1


def test_the_same_seed_draws_the_same_schedules() -> None:
    again: list[Schedule] = []
    hunt.draw(TrialConfig("decode"), again.append, 3, EACH)
    assert tuple(again) == drawn("decode", 3) != drawn("decode", 4)
