"""One forward of a schedule, recorded in both runs and on the fresh engine, and repeated.

`RecordedForward.again` plays the schedule again, with one thing reset in its last forward.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from paritybit.harness.explain.writers import (
    CAPTURE,
    ForwardId,
    SlotWriters,
    StaticWriters,
    slot_writers,
)
from paritybit.harness.lockstep.fresh_run import just_captured
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import NO_RECORDER, ExtraRun, Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep, SlotOwners
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, first_line
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.batch import RequestSpan
from paritybit.reference.ops import OpCall, Ops
from paritybit.reference.pool import KVPools
from paritybit.subjects.protocol import ForwardResult, Overrides
from paritybit.subjects.runners.base import GraphRunner, overwrite
from torch import Tensor

from paritybit.compat import override

OpCalls = list[OpCall]

NewElement = tuple[str, int, Tensor]
"""The name of a static buffer or an index table, the flat index of an element, its new value."""


@dataclass(frozen=True)
class Reset:
    """What a repeated forward has instead of what it had.

    - `elements`: values of elements of static buffers and index tables.
    - `captured`: see `Overrides`.
    - `fresh`: whether a freshly captured engine runs it, over the same static buffers.
    """

    elements: tuple[NewElement, ...] = ()
    captured: bool = True
    fresh: bool = False

    def __add__(self, other: "Reset") -> "Reset":
        return Reset(
            self.elements + other.elements,
            self.captured and other.captured,
            self.fresh or other.fresh,
        )


NO_RESET = Reset()


@contextmanager
def calls_of(ops: Ops, calls: OpCalls | None = None) -> Iterator[OpCalls]:
    """Keep the calls of an op set in this context. They are added to `calls`."""
    ops.calls = [] if calls is None else calls
    try:
        yield ops.calls
    finally:
        ops.calls = None


class Resetting(Recorder):
    """Runs one forward of the subject with a reset."""

    def __init__(self, reset: Reset, calls: OpCalls | None) -> None:
        self.reset = reset
        self.calls = calls

    def run(self, pair: Pair, planned: PlannedStep) -> ForwardResult:
        """Run the forward. Whatever error the reset leads to is the subject's."""
        reset, runner = self.reset, pair.engine.runners.get(planned.mode)
        elements = Overrides(elements=reset.elements)
        overwrite(tables_of(pair.graph_pools), elements)
        engine = pair.engine
        if reset.fresh and runner is not None:
            just_captured(pair, planned)
            engine = self.engine = pair.fresh_engine
            for name, buffer in engine.static_buffers(planned.mode).items():
                buffer.copy_(runner.static_buffers()[name])
        # An input that is made from a stale one is made from the right one.
        overwrite(engine.static_buffers(planned.mode), elements)
        overrides = replace(elements, captured=reset.captured)
        with calls_of(engine.ops, self.calls):
            try:
                return engine.forward(planned.graph.batch, planned.mode, overrides)
            except Exception as error:
                raise SubjectFailedError(first_line(error)) from error


class RecordedForward(Recorder, SlotOwners):
    """Plays a schedule up to its step at `last`, and records the forward of that step.

    - `forward_id`, `plan`, `owners`, `runner`: what runs. `runner` is None without a replay.
    - `graph_before`, `storage`, `eager_storage`: KV of the graph run before and after the forward,
      and of the eager run after it.
    - `tables`, `eager_tables`: the index tables of both runs during it, by name.
    - `static`, `fresh`: the static buffers of the replay's runner by name, after the forward, and
      on the fresh engine after the same forward.
    - `calls`, `eager_calls`, `fresh_calls`: the ops of the subject and of other runs.
    - `observation`: what the checks see, with copies of the static buffers. None if the subject
      failed. `failed` then says why.
    - `written`, `writers`: the last writers of slots and static elements.

    The runs must not diverge before that step. `extra_runs` are those of the last step.
    """

    observation: Observation | None = None
    failed: str | None = None

    def __init__(
        self, pair: Pair, schedule: Schedule, last: int, extra_runs: Mapping[str, ExtraRun]
    ) -> None:
        self.pair = pair
        self.schedule = schedule
        self.last = last
        self.extra_runs = extra_runs
        self.forward_id = CAPTURE
        buffers = pair.engine.all_static_buffers()
        self.writers = StaticWriters(buffer for some in buffers for buffer in some.values())
        self.written: SlotWriters = {}
        with suppress(SubjectFailedError):
            for index, observation in enumerate(self._play(self, self)):
                if index == last:
                    self.observation = observation
                elif observation is not None:
                    self.written |= slot_writers(pair.graph_pools, self.forward_id, self.calls)
        if self.observation is not None:
            static = self.static if self.observation.static else {}
            self.observation = replace(self.observation, static=static)

    @property
    @override
    def spans(self) -> tuple[RequestSpan, ...]:
        return self.plan.graph.spans

    def _play(self, recorder: Recorder, of_last: Recorder) -> Iterator[Observation | None]:
        self.pair.reset(self.schedule.seed)
        for index, step, upcoming in self.schedule.up_to(self.last).ahead():
            at_last = index == self.last
            yield self.pair.step(
                step,
                index,
                self.extra_runs if at_last else {},
                upcoming=upcoming,
                recorder=of_last if at_last else recorder,
            )

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Keep the forward's starting state, and what the fresh engine gives."""
        batch = planned.graph.batch
        self.plan = planned
        self.owners = pair.graph_scheduler.owners()
        serials = tuple(pair.graph_scheduler.request_of(span.row).serial for span in self.spans)
        requests = [] if batch is None else batch.token_requests.tolist()
        rows = tuple(serials[request] for request in requests)
        self.runner = pair.engine.runners.get(planned.mode) if planned.expected_graph else None
        name = self.runner.name if self.runner is not None else None
        self.forward_id = ForwardId(planned.forwards, planned.index, name, serials, rows)
        self.graph_before = pair.graph_pools.storage.clone()
        self.tables, self.eager_tables = (
            {name: table.clone() for name, table in tables_of(pools).items()}
            for pools in (pair.graph_pools, pair.eager_pools)
        )
        self.fresh_calls: OpCalls = []
        self.fresh: dict[str, Tensor] = {}
        if planned.index == self.last and self.runner is not None:
            just_captured(pair, planned)
            with calls_of(pair.fresh_engine.ops) as calls, suppress(Exception):
                pair.fresh_engine.forward(batch, planned.mode)
            self.fresh_calls = list(calls)
            self.fresh = copy_buffers(pair.fresh_engine.runners[planned.mode])
            pair.restore_graph()

    @contextmanager
    @override
    def eager(self) -> Iterator[None]:
        with calls_of(self.pair.eager_decoder.ops) as calls:
            yield
        self.eager_calls = list(calls)

    @contextmanager
    @override
    def equalizing(self) -> Iterator[None]:
        with self.writers.during(self.forward_id, equalizing=True):
            yield

    def run(self, pair: Pair, planned: PlannedStep) -> ForwardResult:
        """Record the subject's ops and what they leave, even if it fails."""
        with self.writers.during(self.forward_id), calls_of(pair.engine.ops) as calls:
            try:
                return super().run(pair, planned)
            except Exception as error:
                self.failed = first_line(error)
                raise
            finally:
                self.calls = list(calls)
                self.storage = pair.graph_pools.storage.clone()
                self.eager_storage = pair.eager_pools.storage.clone()
                self.static = copy_buffers(self.runner)

    def again(self, reset: Reset = NO_RESET, calls: OpCalls | None = None) -> Observation | None:
        """Play the schedule again, with `reset` in its last forward. Returns None if that fails.

        The ops of that forward are added to `calls`.
        """
        observation = None
        with suppress(SubjectFailedError):
            *_, observation = self._play(NO_RECORDER, Resetting(reset, calls))
        return observation


def tables_of(pools: KVPools) -> dict[str, Tensor]:
    """Return the index tables of a run, by name."""
    names = "req_to_token", "full_to_swa_index_mapping"
    return {name: getattr(pools.tables, name) for name in names}


def copy_buffers(runner: GraphRunner | None) -> dict[str, Tensor]:
    """Return a runner's current static buffers, by name."""
    if runner is None:
        return {}
    return {name: buffer.clone() for name, buffer in runner.static_buffers().items()}
