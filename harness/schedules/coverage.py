"""Counts the states that schedules reach at each step, to detect a generator that misses some."""

from collections import Counter
from collections.abc import Iterable

from paritybit.harness.schedules.buckets import (
    BUCKETS,
    FILLINGS,
    SMALLEST,
    SMALLEST_TOKENS,
    TOKEN_BUCKETS,
    filling,
    fillings,
)
from paritybit.reference.batch import Mode
from paritybit.subjects.protocol import Replay
from paritybit.subjects.runners import RUNNERS, engine_runners

ALWAYS_REQUIRED = (
    "padded replay",
    "several padded rows",
    "replay without padding",
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
    "SWA sub-pool nearly full",
    "full sub-pool nearly full",
    "pool full",
)
"""Events that generated schedules must reach together, whatever runner is under test."""

SPECULATION_REQUIRED = (
    "draft accepted",
    "draft rejected",
    "accepted beside the first branch",
    "tree of the harness",
    "tree of a draft model",
    "draft caught up in several steps",
    "runner after another",
)
"""Events that they must also reach if the engine under test speculates."""

OF_ONE_BRANCH = ("replay", "padded replay")
"""Replays that a runner of speculation must also have with drafts of one branch."""

BEGUN_BESIDE = "prompt begun beside one that continues"

PREFILL_REQUIRED = ("prefill of several requests", BEGUN_BESIDE)
"""Events that they must also reach if a runner under test prefills."""

LONGEST = "length of the longest context"
"""What trials with the smallest sizes must reach, apart from a full bucket of one row."""

OVERLAPPED = "step planned while a forward was in flight"
FREED_IN_FLIGHT = "freed while a forward was in flight"
HANDED_OVER_IN_FLIGHT = "tokens written where a forward in flight keeps its own"

OVERLAP_REQUIRED = (OVERLAPPED, FREED_IN_FLIGHT, HANDED_OVER_IN_FLIGHT)
"""Events that schedules must also reach if steps overlap."""


def required_replays(runners: Iterable[str]) -> tuple[str, ...]:
    """Return the events of each runner's replays, padded and not."""
    return tuple(f"{name}: {what}" for name in runners for what in ("replay", "padded replay"))


def of_one_branch(runner: str, what: str = "replay") -> str:
    """Return the name of the event that a runner replayed a batch of one-branch drafts."""
    return f"{runner}: {what} of one branch"


def required_of_chains(runners: Iterable[str]) -> tuple[str, ...]:
    """Return what trials of some runners must reach if drafts have one branch.

    Few trees of several branches are accepted as a whole.
    """
    events = tuple(of_one_branch(runner, what) for runner in runners for what in OF_ONE_BRANCH)
    return (*events, "all drafts accepted") if events else ()


def required_events(runners: Iterable[str]) -> tuple[str, ...]:
    """Return the events that the schedules of trials of some runners must reach together.

    Each runner under test must replay each bucket full, one short, and padded right after it was
    full. The other runners of its engine must replay.
    """
    on_trial = [RUNNERS[runner] for runner in dict.fromkeys(runners)]
    engines = [other for runner in on_trial for other in engine_runners(runner.name)]
    names = [name for name in RUNNERS if name in {runner.name for runner in engines}]
    speculates = any(runner.mode is Mode.TARGET_VERIFY for runner in engines)
    filled = [
        filling(runner.name, bucket, how)
        for runner in on_trial
        for bucket in (TOKEN_BUCKETS if runner.token_buckets else BUCKETS)
        for how in FILLINGS
    ]
    speculation = SPECULATION_REQUIRED if speculates else ()
    prefilled = PREFILL_REQUIRED if any(runner.token_buckets for runner in on_trial) else ()
    always = (*ALWAYS_REQUIRED, *speculation, *prefilled)
    return (*always, *required_replays(names), *filled)


def most_together(runner: str) -> str:
    """Return the name of the event that a runner prefilled as many requests as fit a batch."""
    return f"{runner}: prefill of {max(BUCKETS)} requests"


def required_at_edges(runners: Iterable[str]) -> tuple[str, ...]:
    """Return what trials with the smallest sizes must reach."""
    full = [
        filling(name, min(SMALLEST_TOKENS if RUNNERS[name].token_buckets else SMALLEST), "full")
        for name in runners
    ]
    return (LONGEST, *full) if full else ()


class Coverage:
    """Counts the events of one schedule's replays in `events`. Drafts have `topk` branches."""

    def __init__(self, events: Counter[str], topk: int) -> None:
        self.events = events
        self.topk = topk
        self.last: dict[str, Replay] = {}
        self.last_runner: str | None = None

    def see(self, replay: Replay, requests: int) -> None:
        """Count the events of one replay, of a batch with `requests` requests."""
        runner, bucket, live_size = replay.runner, replay.bucket, replay.live_size
        last = self.last.get(runner)
        last_bucket, last_size = (last.bucket, last.live_size) if last else (bucket, live_size)
        same = bucket == last_bucket
        seen = {
            f"{runner}: bucket {bucket}": True,
            f"{runner}: replay": True,
            f"{runner}: padded replay": replay.padded,
            "padded replay": replay.padded,
            "several padded rows": bucket - live_size > 1,
            "replay without padding": not replay.padded,
            "idle replay": live_size == 0,
            "batch of several rows": requests > 1,
            "prefill of several requests": requests > 1 and self.prefills(runner),
            "batch shrank in its bucket": same and live_size < last_size,
            "batch grew again in its bucket": same and live_size > last_size,
            "smaller bucket after a larger": bucket < last_bucket,
            "larger bucket after a smaller": bucket > last_bucket,
            "runner after another": self.last_runner not in {None, runner},
        }
        if self.prefills(runner):
            seen[most_together(runner)] = requests == max(BUCKETS)
        if self.topk == 1 and requests and self.speculates(runner):
            seen[of_one_branch(runner)] = True
            seen[of_one_branch(runner, "padded replay")] = replay.padded
        for how, reached in fillings(replay, last).items():
            seen[filling(runner, bucket, how)] = reached
        self.events.update(event for event, reached in seen.items() if reached)
        self.last[runner] = replay
        self.last_runner = runner

    @staticmethod
    def speculates(runner: str) -> bool:
        """Whether a built-in runner, by name, drafts, verifies or prepares to draft."""
        return runner in RUNNERS and RUNNERS[runner].mode.speculates

    @staticmethod
    def prefills(runner: str) -> bool:
        """Whether a built-in runner, by name, extends requests whose tokens are known."""
        return runner in RUNNERS and RUNNERS[runner].mode is Mode.EXTEND
