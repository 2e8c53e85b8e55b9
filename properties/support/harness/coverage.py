"""Counts the states that schedules reach at each step, to detect a generator that misses some."""

from collections import Counter
from collections.abc import Iterable

from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.lockstep.config import BUCKETS, TOKEN_BUCKETS
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Admit, Step, Verify
from paritybit.reference.batch import Mode
from paritybit.reference.config import DRAFT_STEPS
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
    "page issued again",
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
    """Counts the events of one schedule. It observes the steps that a player plays."""

    def __init__(self, player: SchedulePlayer) -> None:
        self.player = player
        self.events: Counter[str] = Counter()
        self.last: dict[str, ReplayResult] = {}
        self.last_runner: str | None = None
        self.requests: dict[int, tuple[int, int, int, int]] = {}
        """The length, drafted tokens, drafts and evicted pages of each request before a step."""
        self.retracted = 0
        self.pages: set[int] = set()
        self.issued: set[int] = set()
        """The pages that requests hold, and those that they ever held."""

    def __call__(
        self, _: int, step: Step, observation: Observation | None, __: frozenset[str]
    ) -> None:
        """Count the events of a step."""
        if observation is not None and observation.replay is not None:
            self.replayed(observation.replay, len(observation.graph.spans))
        seen = dict.fromkeys(self.of_requests(step, observation), 1)
        self.events.update(seen)

    def of_requests(self, step: Step, observation: Observation | None) -> Iterable[str]:
        """Yield what a step did to requests."""
        book, before = self.player.pair.graph_scheduler, self.requests
        spans = () if observation is None else observation.graph.spans
        yield from self.advanced()
        before_retracted, self.retracted = self.retracted, len(book.retracted)
        if self.retracted != before_retracted:
            yield "retracted" if self.retracted > before_retracted else "resumed"
        elif before.keys() - self.requests.keys():
            yield "finished"
        if isinstance(step, Admit):
            if self.requests.keys() - before.keys():
                yield from admitted(step, book.config.window)
            elif book.allocator.free_rows and book.free_token_rows:
                yield "pool full"
        if observation is not None and observation.mode is Mode.EXTEND:
            if len({span.begin == 0 for span in spans}) > 1:
                yield "prompt begun beside one that continues"
        elif spans and len(book.running) > len(spans):
            yield "requests parked"
        for span in spans if isinstance(step, Verify) else ():
            request = book.request_of(span.row)
            accepted, drafts = request.length - span.begin - 1, before[request.serial][2]
            yield "drafts of a draft model" if drafts else "drafts of the harness"
            yield "draft accepted" if accepted else "draft rejected"
            yield "all drafts accepted" if accepted == DRAFT_STEPS else "draft rejected"

    def advanced(self) -> Iterable[str]:
        """Yield what happened to the running requests, and note their state."""
        book, before = self.player.pair.graph_scheduler, self.requests
        pages, now, window = set[int](), dict[int, tuple[int, int, int, int]](), book.config.window
        for one in book.running:
            assert one.allocation is not None
            evicted = one.allocation.swa_pages.count(None)
            now[one.serial] = one.length, one.drafted, len(one.drafts), evicted
            pages.update(one.allocation.full_pages)
            length, drafted, _, gone = before.get(one.serial, (0, 0, 0, 0))
            for what, reached in ((" - 1", window - 1), ("", window), (" + 1", window + 1)):
                if length < reached <= one.length:
                    yield f"length window{what}"
            if evicted > gone:
                yield "evicted"
            if 0 < drafted < one.drafted:
                yield "draft caught up in several steps"
        if not (pages - self.pages).isdisjoint(self.issued):
            yield "page issued again"
        self.requests, self.pages, self.issued = now, pages, self.issued | pages

    def replayed(self, replay: ReplayResult, requests: int) -> None:
        """Count the events of one replay, of a batch with `requests` requests."""
        runner, bucket, live_size = replay.runner, replay.bucket, replay.live_size
        last = self.last.get(runner)
        last_bucket, last_size = (last.bucket, last.live_size) if last else (bucket, live_size)
        same, prefills = bucket == last_bucket, RUNNERS[runner].mode is Mode.EXTEND
        after_full = last is not None and not last.padded and last.bucket == bucket
        seen = {
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


def admitted(step: Admit, window: int) -> Iterable[str]:
    """Yield what is special about the prompt of a request that was admitted."""
    if step.prompt <= 1:
        yield "prompt of one token"
    if step.prompt > window:
        yield "prompt beyond the window"
    if step.chunk < step.prompt:
        yield "prompt in chunks"
