"""One forward of a schedule, recorded in both runs and on the fresh engine, and repeated.

`RecordedForward.again` repeats the graph run's forward from the same bytes with one thing reset.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from paritybit.harness.checks.property import Property
from paritybit.harness.explain.ledgers import CAPTURE, ForwardId, SlotLedger, StaticLedger
from paritybit.harness.lockstep.bits import bits, clone_output, outputs_differ
from paritybit.harness.lockstep.fresh_run import just_captured
from paritybit.harness.lockstep.logs import warnings_logged
from paritybit.harness.lockstep.noise import index_bounds
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import ExtraRun, Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.batch import RequestSpan
from paritybit.reference.model import Output
from paritybit.reference.ops import OpCall, Ops
from paritybit.reference.pool import Tables
from paritybit.subjects.engine import ReplicaEngine
from paritybit.subjects.protocol import ForwardResult, Overrides
from paritybit.subjects.runners.base import GraphRunner, overwrite
from torch import Tensor

LENGTHS, ON_HOST = "seq_lens", "seq_lens_cpu"
"""Lengths, and their host copy. It must not exceed them, because it sizes the lists."""

Calls = list[OpCall]

StaticElement = tuple[str, int, Tensor]
"""A static buffer's name, the flat index of an element, and its new value."""


@dataclass(frozen=True)
class TableCell:
    """A cell of index table number `table`, flat index, and the value that it gets."""

    table: int
    place: int
    value: int


@dataclass(frozen=True)
class Reset:
    """What a repeated forward has instead of what it had.

    - `elements`: values of static elements.
    - `cells`: values of cells of the index tables.
    - `captured`: if False, the captured function runs eagerly over the same static buffers.
    - `fresh`: whether a freshly captured engine runs it, over the same static buffers.
    """

    elements: tuple[StaticElement, ...] = ()
    cells: tuple[TableCell, ...] = ()
    captured: bool = True
    fresh: bool = False

    def __add__(self, other: "Reset") -> "Reset":
        """Return both resets in one."""
        return Reset(
            self.elements + other.elements,
            self.cells + other.cells,
            self.captured and other.captured,
            self.fresh or other.fresh,
        )


NO_RESET = Reset()


@dataclass(frozen=True)
class RepeatedRun:
    """The results of a forward of the graph run: its live output, its ops, and all KV after it.

    `failed` says why it gave no output, if so. Its ops then hold their arguments. `forward` is the
    engine's result, valid until its next forward. It is None for the recorded forward itself.
    `warnings` are what it logged.
    """

    output: Output
    calls: Calls
    storage: Tensor
    failed: str | None
    forward: ForwardResult | None = None
    warnings: tuple[str, ...] = ()


@contextmanager
def calls_of(ops: Ops, calls: Calls | None = None) -> Iterator[Calls]:
    """Keep the calls of an op set in this context. They are added to `calls`."""
    ops.calls = [] if calls is None else calls
    try:
        yield ops.calls
    finally:
        ops.calls = None


class RecordedForward(Recorder):
    """Follows a schedule up to its step at `last`, and records the forward of that step.

    - `forward_id`, `plan`, `owners`, `runner`: what runs. `runner` is None without a replay.
    - `eager_before`, `graph_before`, `eager_storage`: KV of a run, before or after the forward.
    - `tables`, `eager_tables`: the index tables of both runs during it.
    - `state`: the engine's Python state before it.
    - `static`, `static_before`, `fresh`: the static buffers of the replay's runner by name, after
      the forward, before it, and on the fresh engine after the same forward.
    - `eager_calls`, `fresh_calls`, `eager_output`: the ops and the output of other runs.
    - `run`: the results of the subject. `observation`: what the checks see, with copies of the
      static buffers. None if the subject failed.
    - `written`, `ledger`: the last writers of slots and static elements.
    """

    observation: Observation | None = None

    def __init__(self, pair: Pair, last: int) -> None:
        self.pair = pair
        self.last = last
        self.forward_id = CAPTURE
        self.ledger = StaticLedger(
            buffer for buffers in self.engine.all_static_buffers() for buffer in buffers.values()
        )
        self.written = SlotLedger(pair.graph_pools)

    @property
    def engine(self) -> ReplicaEngine:
        """The engine under test."""
        return self.pair.subject

    @property
    def spans(self) -> tuple[RequestSpan, ...]:
        """The batch of the forward by request. Empty if it is idle."""
        return self.plan.graph.spans

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Keep the forward's starting state, and what the fresh engine gives."""
        batch = planned.graph.batch
        self.plan = planned
        self.owners = pair.graph.owners()
        serials = tuple(pair.graph.request_of(span.row).serial for span in self.spans)
        requests = [] if batch is None else batch.token_requests.tolist()
        rows = tuple(serials[request] for request in requests)
        self.runner = self.engine.runners.get(planned.mode) if planned.expected_graph else None
        name = self.runner.name if self.runner is not None else None
        self.forward_id = ForwardId(planned.forwards, planned.place, name, serials, rows)
        self.eager_before = pair.eager_pools.storage.clone()
        self.graph_before = pair.graph_pools.storage.clone()
        self.tables, self.eager_tables = (
            tuple(table.clone() for table in both(pools.tables))
            for pools in (pair.graph_pools, pair.eager_pools)
        )
        self.fresh_calls: Calls = []
        self.fresh: dict[str, Tensor] = {}
        if planned.place == self.last and self.runner is not None:
            just_captured(pair, planned)
            self.fresh_calls = self._run(pair.fresh_engine, planned, Overrides(), []).calls
            self.fresh = copy_buffers(pair.fresh_engine.runners[planned.mode])
            pair.restore_graph()
        self.state = self.engine.state()

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Record the eager forward's ops."""
        with calls_of(self.pair.decoder.ops) as calls:
            yield
        self.eager_calls = list(calls)

    def eager_gave(self, output: Output | None) -> None:
        """Keep the eager forward's output."""
        self.eager_output = output

    @contextmanager
    def equalizing(self) -> Iterator[None]:
        """Credit writes to the harness."""
        with self.ledger.during(self.forward_id, equalizing=True):
            yield

    @contextmanager
    def forwarding(self) -> Iterator[None]:
        """Record the subject's ops and what they leave, even if it fails."""
        failed: str | None = None
        self.static_before = copy_buffers(self.runner)
        with self.ledger.during(self.forward_id), calls_of(self.engine.ops) as calls:
            try:
                yield
            except SubjectFailedError as error:
                failed = str(error)
                raise
            finally:
                storage = self.pair.graph_pools.storage.clone()
                self.run = RepeatedRun({}, list(calls), storage, failed)
                self.eager_storage = self.pair.eager_pools.storage.clone()
                self.static = copy_buffers(self.runner)

    def end_step(self, observation: Observation) -> None:
        """Follow the end of a step with a forward."""
        if observation.place == self.last:
            self.run = replace(self.run, output=clone_output(observation.graph.output or {}))
            static = self.static if observation.static else {}
            self.observation = replace(observation, static=static)
            return
        self.written.follow(self.forward_id, self.run.calls)

    def again(self, reset: Reset = NO_RESET, calls: Calls | None = None) -> RepeatedRun:
        """Repeat the graph run's forward from the same bytes, with `reset`.

        Its ops are added to `calls`. On CUDA, a reset that might lead out of bounds counts as
        failed without a run, because a device assertion ends the process.
        """
        pair = self.pair
        if pair.trial.device == "cuda" and not all(map(self._within_bounds, reset.elements)):
            return RepeatedRun({}, [], self.run.storage, "the value could lead out of bounds")
        pair.graph_pools.storage.copy_(self.graph_before)
        self._restore_tables()
        for cell in reset.cells:
            both(pair.graph_pools.tables)[cell.table].view(-1)[cell.place] = cell.value
        engine = self._rewind(reset)
        overrides = Overrides(elements=reset.elements, captured=reset.captured)
        pair.log.take()
        try:
            with pair.log, warnings_logged():
                found = self._run(engine, self.plan, overrides, calls)
            return replace(found, warnings=pair.log.take())
        finally:
            self._restore_tables()

    def _run(
        self,
        engine: ReplicaEngine,
        planned: PlannedStep,
        overrides: Overrides,
        calls: Calls | None,
    ) -> RepeatedRun:
        """Run a forward over the graph run's pools, and keep its results."""
        output: Output = {}
        failed, forward = None, None
        with calls_of(engine.ops, calls) as kept:
            try:
                forward = engine.forward(planned.graph.batch, planned.mode, overrides)
                output = clone_output(forward.output)
            except Exception as error:  # A reset may make the subject fail in any way.
                failed = (str(error).splitlines() or [type(error).__name__])[0]
        storage = self.pair.graph_pools.storage.clone()
        return RepeatedRun(output, list(kept), storage, failed, forward)

    def _rewind(self, reset: Reset) -> ReplicaEngine:
        """Return the engine that runs the forward, with its state from before, and `reset`."""
        engine = self.engine
        if reset.fresh:
            just_captured(self.pair, self.plan)
            engine = self.pair.fresh_engine
        else:
            engine.restore(self.state)
        runner = engine.runners.get(self.plan.mode)
        if self.runner is not None and runner is not None:
            for name, buffer in runner.static_buffers().items():
                buffer.copy_(self.static_before[name])
            # An input that is made from a stale one is made from the right one.
            overwrite(runner.static_buffers(), Overrides(elements=reset.elements))
        return engine

    def _restore_tables(self) -> None:
        for table, during in zip(both(self.pair.graph_pools.tables), self.tables, strict=True):
            table.copy_(during)

    def _within_bounds(self, element: StaticElement) -> bool:
        """Whether an element may have a value, whatever the other elements are."""
        name, place, value = element
        if value.dtype.is_floating_point or value.dtype is torch.bool:
            return True
        bounds = index_bounds(self.pair.config, self.pair.graph_pools.sizes)
        # Of other integers, the replay and the capture held the largest without an error.
        most = max(int(one[name].max()) for one in (self.static, self.fresh))
        bound = bounds.get(name, most + 1)
        if name in (LENGTHS, ON_HOST):
            bound = self.pair.config.max_context + 1
        if not 0 <= int(value) < bound:
            return False
        if name == LENGTHS:
            on_host = self.static.get(ON_HOST)
            return on_host is not None and int(on_host.view(-1)[place]) <= int(value)
        return name != ON_HOST or int(value) <= int(self.static[LENGTHS].view(-1)[place])

    def holds(self, rule: Property, run: RepeatedRun, reset: Reset) -> bool:
        """Whether a property holds for a forward that was repeated with `reset`.

        For a step that failed, it holds if the graph run equals the eager run: KV, reserved slots
        apart, and output.
        """
        seen, forward = self.observation, run.forward
        if run.failed is not None or forward is None:
            return False
        if seen is None or rule.judge is None:
            different = (bits(run.storage) != bits(self.eager_storage)) & self.pair.compared
            return not different.any() and not outputs_differ(run.output, self.eager_output or {})
        replay = forward.replay
        engine = self.pair.fresh_engine if reset.fresh else self.engine
        output = run.output if seen.graph.batch is not None else None
        repeated = replace(
            seen,
            graph=replace(seen.graph, after=run.storage, output=output),
            replay=replay,
            facts=engine.facts(replay) if replay is not None else None,
            keys=forward.keys,
            static=copy_buffers(engine.runners.get(self.plan.mode)) if replay is not None else {},
            # The fresh engine is not heard, and no replay runs all lines of the function.
            warnings=run.warnings if reset.captured and not reset.fresh else seen.warnings,
        )
        return rule.judge(repeated) is None


def both(tables: Tables) -> tuple[Tensor, Tensor]:
    """Return the index tables in the order of their numbers."""
    return tables.req_to_token, tables.full_to_swa_index_mapping


def copy_buffers(runner: GraphRunner | None) -> dict[str, Tensor]:
    """Return a runner's current static buffers, by name."""
    if runner is None:
        return {}
    return {name: buffer.clone() for name, buffer in runner.static_buffers().items()}


def record_forward(
    pair: Pair, schedule: Schedule, place: int, extra_runs: Mapping[str, ExtraRun]
) -> RecordedForward | None:
    """Play a schedule up to its step at `place`, and record its forward. None if it runs none.

    `extra_runs` are those of the pair's steps. The runs must not have diverged before.
    """
    with torch.inference_mode():
        pair.reset(schedule.seed)
        recorded = RecordedForward(pair, place)
        for at, step, upcoming in schedule.up_to(place).ahead():
            try:
                observation = pair.step(step, at, extra_runs, upcoming=upcoming, recorder=recorded)
            except SubjectFailedError:
                break
            if observation is not None:  # Follow the step before anything overwrites its results.
                recorded.end_step(observation)
    return recorded if recorded.forward_id.step == place else None
