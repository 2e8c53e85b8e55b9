"""Counts the states that schedules reach at each step, to detect a generator that misses some."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.overlapped import FREED_IN_FLIGHT, OVERLAPPED
from paritybit.harness.schedules.buckets import BUCKETS, TOKEN_BUCKETS
from paritybit.reference.batch import Mode
from paritybit.subjects.protocol import ReplayResult
from paritybit.subjects.runners import RUNNERS, engine_runners

ALWAYS_REQUIRED = (
    "several padded rows",
    "idle replay",
    "batch of several rows",
    "batch shrank in its bucket",
    "batch grew again in its bucket",
    "smaller bucket after a larger",
    "larger bucket after a smaller",
    "requests parked",
    "prompt of one token",
    "prompt beyond the window",
    "prompt in chunks",
    "length window - 1",
    "length window",
    "length window + 1",
    "evicted",
    "finished",
    "retracted",
    "resumed",
    "slot issued again",
    "pool full",
)
"""Events that generated schedules must reach together, whatever runner is under test."""

SPECULATION_REQUIRED = (
    "draft accepted",
    "draft rejected",
    "all drafts accepted",
    "drafts of the harness",
    "drafts of a draft model",
    "draft caught up in several steps",
    "runner after another",
)
"""Events that they must also reach if the engine under test speculates."""

PREFILL_REQUIRED = ("prefill of several requests", "prompt begun beside one that continues")
"""Events that they must also reach if a runner under test prefills."""

OVERLAP_REQUIRED = (OVERLAPPED, FREED_IN_FLIGHT)
"""Events that schedules must also reach if steps overlap."""


FILLINGS = ("full", "one short", "padded after full")
"""The ways in which each bucket of each runner must be filled at least once.

One short means all requests, or tokens, but one. If a request has several tokens, it also means
all requests with too few tokens.
"""


def filling(runner: str, bucket: int, how: str) -> str:
    """Return the name of the event that a runner replayed a bucket filled as `how` of FILLINGS."""
    return f"{runner}: bucket {bucket} {how}"


def required_events(runners: Iterable[str]) -> tuple[str, ...]:
    """Return the events that the schedules of trials of some runners must reach together.

    Each runner under test must replay each bucket full, one short, and padded right after it was
    full. The other runners of its engine must replay, padded and not.
    """
    on_trial = [RUNNERS[runner] for runner in dict.fromkeys(runners)]
    engines = {other.name: other for one in on_trial for other in engine_runners(one.name)}
    replays = [
        f"{name}: {what}"
        for name in RUNNERS
        for what in ("replay", "padded replay")
        if name in engines
    ]
    filled = [
        filling(runner.name, bucket, how)
        for runner in on_trial
        for bucket in (TOKEN_BUCKETS if runner.token_buckets else BUCKETS)
        for how in FILLINGS
    ]
    speculates = any(runner.mode is Mode.TARGET_VERIFY for runner in engines.values())
    return (
        *ALWAYS_REQUIRED,
        *(SPECULATION_REQUIRED if speculates else ()),
        *(PREFILL_REQUIRED if any(runner.token_buckets for runner in on_trial) else ()),
        *replays,
        *filled,
    )


class Coverage:
    """Counts the events of replays. It observes the steps of a `SchedulePlayer`, one schedule."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.last: dict[str, ReplayResult] = {}
        self.last_runner: str | None = None

    def __call__(self, _: int, __: object, observation: Observation | None, *___: Any) -> None:
        """Count the events of a step, if it replayed a graph."""
        if observation is not None and observation.replay is not None:
            self.see(observation.replay, len(observation.graph.spans))

    def see(self, replay: ReplayResult, requests: int) -> None:
        """Count the events of one replay, of a batch with `requests` requests."""
        runner, bucket, live_size = replay.runner, replay.bucket, replay.live_size
        last = self.last.get(runner)
        last_bucket, last_size = (last.bucket, last.live_size) if last else (bucket, live_size)
        same, prefills = bucket == last_bucket, RUNNERS[runner].mode is Mode.EXTEND
        after_full = last is not None and not last.padded and last.bucket == bucket
        seen = {
            f"{runner}: bucket {bucket}": True,
            f"{runner}: replay": True,
            f"{runner}: padded replay": replay.padded,
            filling(runner, bucket, "full"): not replay.padded,
            filling(runner, bucket, "one short"): replay.padded and live_size >= bucket - 1,
            filling(runner, bucket, "padded after full"): replay.padded and after_full,
            "several padded rows": bucket - live_size > 1,
            "idle replay": live_size == 0,
            "batch of several rows": requests > 1,
            "prefill of several requests": requests > 1 and prefills,
            "batch shrank in its bucket": same and live_size < last_size,
            "batch grew again in its bucket": same and live_size > last_size,
            "smaller bucket after a larger": bucket < last_bucket,
            "larger bucket after a smaller": bucket > last_bucket,
            "runner after another": self.last_runner not in {None, runner},
        }
        self.events.update(event for event, reached in seen.items() if reached)
        self.last[runner] = replay
        self.last_runner = runner
