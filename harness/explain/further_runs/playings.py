"""The first op that gives different bits when a schedule is played again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from paritybit.harness.explain.facts import Cause, GivenValue, Situation
from paritybit.harness.explain.further_runs.aligned import GivenRows, Layered, live, rows_differ
from paritybit.harness.explain.provenance import row_requests
from paritybit.harness.explain.recorded import calls_of
from paritybit.harness.lockstep.bits import bits, hex_bits
from paritybit.harness.lockstep.pair import Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.ops import Ops
from paritybit.reference.pool import KVPools
from torch import Tensor


def compared(world: str) -> tuple[str, ...]:
    """Return in words what is compared, in the eager or in the graph world."""
    return (
        f"in the first play of the schedule in the {world} run",
        "in the second play",
        "every earlier op gave the same bits both times",
    )


@dataclass(frozen=True)
class PlayedForward:
    """One forward of a play: all KV of both worlds before it, and its op results in both."""

    at: Situation
    live_rows: int
    before: tuple[Tensor, Tensor]
    given: list[tuple[str, GivenRows, Layered]] = field(default_factory=list)


class PlayingRecorder(Recorder):
    """Keeps copies of the op results of every forward in the eager and the graph world."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.forwards: list[PlayedForward] = []

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Begin a forward."""
        batch = planned.graph.batch
        rows = row_requests(batch, range(batch.live_requests)) if batch is not None else ()
        runner = self.pair.subject.runners.get(planned.mode) if planned.expected_graph else None
        at = Situation(planned.place, runner.name if runner is not None else None)
        if runner is not None:
            size = runner.size(batch) if batch is not None else 0
            at = replace(at, bucket=runner.bucket(size), live_size=size)
        before = pair.eager_pools.storage.clone(), pair.graph_pools.storage.clone()
        self.forwards.append(PlayedForward(at, len(rows), before))

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Keep the results of the eager forward's ops."""
        with self._given("eager", self.pair.decoder.ops, self.pair.eager_pools):
            yield

    @contextmanager
    def forwarding(self) -> Iterator[None]:
        """Keep the results of the subject's ops."""
        with self._given("graph", self.pair.subject.ops, self.pair.graph_pools):
            yield

    @contextmanager
    def _given(self, world: str, ops: Ops, pools: KVPools) -> Iterator[None]:
        with calls_of(ops) as calls:
            yield
        given = ((world, GivenRows.of(one).cloned(), Layered.of(one, pools)) for one in calls)
        self.forwards[-1].given.extend(given)


def playing_cause(pair: Pair, schedule: Schedule, step: int) -> tuple[Situation, Cause] | None:
    """Explain a schedule that gives different bits when played again up to a step.

    Returns None if no forward starts from different bytes, and no op gives different results.
    """
    first, again = (_played(pair, schedule, step) for _ in range(2))
    for left, right in zip(first, again, strict=False):
        cause = _drifted(pair, left, right)
        for (world, usual, at), (_, other, _) in zip(left.given, right.given, strict=False):
            difference = rows_differ(usual, other, live(left.live_rows), at)
            if difference is not None:
                words = compared(world)
                return left.at, Cause("not known", difference=difference, compared=words)
        if cause is not None:
            return left.at, cause
    return None


def _played(pair: Pair, schedule: Schedule, last: int) -> Sequence[PlayedForward]:
    """Play a schedule up to a step, and return its forwards."""
    recorder = PlayingRecorder(pair)
    pair.begin(schedule)
    for place, step, upcoming in schedule.ahead(last):
        pair.step(step, place, upcoming=upcoming, recorder=recorder)
    return recorder.forwards


def _drifted(pair: Pair, left: PlayedForward, right: PlayedForward) -> Cause | None:
    """Return the KV that differs before a forward when it is played again."""
    for world, one, other in zip(("eager", "graph"), left.before, right.before, strict=True):
        different = (bits(one) != bits(other)) & pair.compared
        if different.any():
            place = int(different.nonzero()[0, 0])
            what = f"element {place} of KV, before the forward,"
            values = hex_bits(other[place]), hex_bits(one[place])
            given = GivenValue(what, *values, stale=False, left_by=None, how=None)
            return Cause("not known", given=given, compared=compared(world))
    return None
