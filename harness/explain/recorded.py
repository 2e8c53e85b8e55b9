"""Recording one forward of a schedule: everything that both worlds and the fresh engine did.

The forward can then be run again with one thing changed, such as a static input or the capture. If
the result changes, that thing is a cause.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from paritybit.harness.explain.counterfactuals.elements import Element, held_by, within_bounds
from paritybit.harness.explain.counterfactuals.objects import Attribute, Kept
from paritybit.harness.explain.origins.log_sites import LogSite, SiteTrap
from paritybit.harness.explain.origins.outputs import GivenOutput, OutputLedger
from paritybit.harness.explain.origins.tables import Cell, TableLedger, both
from paritybit.harness.explain.provenance import ForwardId, SlotLedger, StaticLedger, row_requests
from paritybit.harness.explain.tracing import Seen, following
from paritybit.harness.lockstep.bits import cloned
from paritybit.harness.lockstep.fresh_run import Show, just_captured
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep, owner_of
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Span
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.reference.ops import OpCall, Ops
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.protocol import Forward, Overrides
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN, GraphRunner
from torch import Tensor

Calls = list[OpCall]
Given = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]
"""Returns the arguments for an op, given its name and its original arguments."""


@contextmanager
def calls_of(ops: Ops) -> Iterator[Calls]:
    """Keep the calls of an op set while entered."""
    calls: Calls = []
    ops.calls = calls
    try:
        yield calls
    finally:
        ops.calls = None


@dataclass(frozen=True)
class Run:
    """The results of a forward of the graph world: its live output, its ops, and all KV after it.

    `failed` says why it gave no output, if so. Its ops then hold their arguments.
    `forward` is the engine's result, valid until its next forward. It is None for a recorded
    forward of the subject.
    """

    output: Output
    calls: Calls
    storage: Tensor
    failed: str | None
    forward: Forward | None = None


@dataclass
class RecordedForward:
    """One recorded forward. `forward_id` is its own, and `ledger` ends with it.

    - Storages: all KV of a world, before and after the forward. `written` has each slot's last
      writer before it.
    - `static`, `static_before`, `fresh`: the static buffers of the replay's runner by name, after
      the forward, before it, and on the fresh engine after the same forward.
    - `state`, `objects`, `captured`: the engine's Python state and objects before it, and the
      objects when the schedule began.
    - `tables`, `eager_tables`, `cells`: the index tables of the graph and the eager world during
      it, and since when each cell of the graph world's has held its value.
    - `outputs`: the outputs of earlier replays.
    - `observation`: what the checks see, valid until `again` is called. None if the subject failed.
    - `further`: the further run that a property asked for, or None. Its `engine` is the fresh
      engine, and its `show` returns what the property sees of a run.
    """

    pair: Pair
    engine: CapturedEngine
    forward_id: ForwardId
    planned: PlannedStep
    owners: tuple[Owner, ...]
    eager_before: Tensor
    graph_before: Tensor
    tables: tuple[Tensor, Tensor]
    eager_tables: tuple[Tensor, Tensor]
    cells: TableLedger
    outputs: tuple[GivenOutput, ...]
    observation: Observation | None
    eager_output: Output | None
    eager_calls: Calls
    eager_storage: Tensor
    run: Run
    fresh_calls: Calls
    static_before: dict[str, Tensor]
    static: dict[str, Tensor]
    fresh: dict[str, Tensor]
    ledger: StaticLedger
    written: SlotLedger
    sites: list[LogSite]
    state: Any
    captured: Kept
    objects: Kept
    runner: GraphRunner | None
    """The runner whose graph was replayed, if any."""
    payload: Tensor | None
    """The payload of an eager forward that extends requests."""
    overrides: Overrides = NOTHING_OVERRIDDEN
    show: Show | None = None
    further: "RecordedForward | None" = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The batch of the forward by request. Empty if it is idle."""
        batch = self.planned.graph.batch
        return batch.spans if batch is not None else ()

    @property
    def live_size(self) -> int | None:
        """The live size of the replay, in its buckets' unit."""
        if self.runner is None:
            return None
        batch = self.planned.graph.batch
        return 0 if batch is None else self.runner.size(batch)

    @property
    def off_path(self) -> bool:
        """Whether a graph replayed a batch that none can run, or the reverse."""
        seen = self.observation
        return seen is not None and (seen.replay is None) != (self.runner is None)

    @property
    def bucket(self) -> int | None:
        """The bucket of the replay."""
        if self.runner is None:
            return None
        largest = self.runner.buckets[-1] if self.overrides.largest else 0
        return self.runner.bucket(max(self.live_size or 0, largest))

    def owner_of(self, kind: Kind, slot: int) -> str:
        """Return the owner of a slot in words, including slots that are being written."""
        return owner_of(kind, slot, self.spans, self.owners)

    def again(
        self,
        elements: tuple[Element, ...] = (),
        *,
        captured: bool = True,
        cells: Sequence[Cell] = (),
        attributes: Sequence[Attribute] = (),
        given: Given | None = None,
        seen: Seen | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> Run:
        """Run the forward again from the same bytes, with some static elements or cells changed.

        Without `captured` the captured function runs eagerly over the static buffers. `attributes`
        get their values from the beginning of the schedule, and ops get the arguments that `given`
        returns. `seen` is called after each line of the engine, `prepare` before the forward. On
        CUDA, a change that might lead out of bounds counts as failed without a run, because a
        device assertion ends the process.
        """
        pools = self.pair.graph_pools
        within = (within_bounds(self.pair, self.static, element) for element in elements)
        if self.pair.trial.device == "cuda" and not all(within):
            return Run({}, [], self.run.storage, "the value could lead out of bounds")
        pools.storage.copy_(self.graph_before)
        tables = both(pools.tables)
        self._restore_tables()
        for cell in cells:
            tables[cell.table].view(-1)[cell.place] = cell.value
        self.engine.restore(self.state)
        self.objects.restore()
        for attribute in attributes:
            self.captured.put_back(attribute)
        self._restore_static()
        prepare()
        self.engine.ops.given = given
        try:
            with ExitStack() as stack:
                if elements and self.runner is not None:
                    stack.enter_context(held_by(self.runner.inputs, elements))
                if seen is not None:
                    stack.enter_context(following(seen))
                changed = replace(self.overrides, elements=elements, captured=captured)
                return run(self.pair, self.engine, self.planned, changed)
        finally:
            self.engine.ops.given = None
            self._restore_tables()

    def _restore_static(self) -> None:
        """Restore the static buffers, because a changed row that padding keeps would persist."""
        if self.runner is not None:
            for name, buffer in self.runner.static_buffers().items():
                buffer.copy_(self.static_before[name])

    def _restore_tables(self) -> None:
        for table, during in zip(both(self.pair.graph_pools.tables), self.tables, strict=True):
            table.copy_(during)


def run(pair: Pair, engine: CapturedEngine, planned: PlannedStep, overrides: Overrides) -> Run:
    """Run a forward over the graph world's pools, and keep its results."""
    output: Output = {}
    failed, forward = None, None
    with calls_of(engine.ops) as calls:
        try:
            forward = engine.forward_overridden(planned.graph.batch, planned.mode, overrides)
            output = cloned(forward.output)
        except Exception as error:  # A change may make the subject fail in any way.
            failed = (str(error).splitlines() or [type(error).__name__])[0]
    return Run(output, list(calls), pair.graph_pools.storage.clone(), failed, forward)


class OpRecorder(Recorder):
    """Records the ops of each forward in the eager world, on the fresh engine and on the subject.

    Forward `last`, counted from 0, is the one to run again.
    """

    def __init__(self, pair: Pair, last: int) -> None:
        self.pair = pair
        self.engine = pair.subject
        self.last = last
        self.forwards = 0
        self.ledger = StaticLedger(
            buffer for buffers in self.engine.all_static_buffers() for buffer in buffers.values()
        )
        self.slots = SlotLedger(pair.graph_pools)
        self.outputs = OutputLedger()
        self.trap = SiteTrap()

    def begin(self) -> None:
        """Begin to follow the tables, which were just reset."""
        self.cells = TableLedger(self.pair.graph_pools.tables)
        self.captured = Kept(self.engine)

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Keep the forward's starting state, and what the fresh engine gives."""
        batch = planned.graph.batch
        self.plan = planned
        self.owners = pair.graph.owners()
        serials = tuple(
            pair.graph.request_of(span.row).serial for span in (batch.spans if batch else ())
        )
        rows = row_requests(batch, serials) if batch is not None else ()
        self.runner = self.engine.runners.get(planned.mode) if planned.expected_graph else None
        name = self.runner.name if self.runner is not None else None
        self.forward_id = ForwardId(self.forwards, planned.place, name, serials, rows)
        self.eager_before = pair.eager_pools.storage.clone()
        self.graph_before = pair.graph_pools.storage.clone()
        self.cells.follow(planned.place)
        self.tables, self.eager_tables = (
            (rows.clone(), mapping.clone())
            for rows, mapping in (both(pair.graph_pools.tables), both(pair.eager_pools.tables))
        )
        if self.forwards == self.last:
            self.fresh_calls, self.fresh = self._run_fresh(planned)
            pair.restore_graph()
            self.objects = Kept(self.engine)
        self.state = self.engine.state()
        self.trap.sites.clear()
        self.forwards += 1

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Record the eager forward's ops."""
        with calls_of(self.pair.decoder.ops) as calls:
            yield
        self.eager_calls = list(calls)

    def eager_gave(self, output: Output | None) -> None:
        """Keep the eager forward's output."""
        self.eager_output, self.payload = output, self.pair.decoder.payload

    @contextmanager
    def equalizing(self) -> Iterator[None]:
        """Credit writes to the harness."""
        with self.ledger.during(self.forward_id, equalizing=True):
            yield

    @contextmanager
    def forwarding(self) -> Iterator[None]:
        """Record the subject's ops and what they leave, even if it fails."""
        self.failed: str | None = None
        self.static_before = copied(self.runner)
        with ExitStack() as stack:
            stack.enter_context(self.ledger.during(self.forward_id))
            calls = stack.enter_context(calls_of(self.engine.ops))
            try:
                yield
            except SubjectFailedError as error:
                self.failed = str(error)
                raise
            finally:
                self.calls = list(calls)
                self.storage = self.pair.graph_pools.storage.clone()
                self.eager_storage = self.pair.eager_pools.storage.clone()
                self.static = copied(self.runner)

    def recorded(self, observation: Observation | None) -> RecordedForward:
        """Return the last forward. `observation` is None if the subject failed."""
        graph_output = observation.graph.output if observation is not None else None
        return RecordedForward(
            pair=self.pair,
            engine=self.engine,
            forward_id=self.forward_id,
            planned=self.plan,
            owners=self.owners,
            eager_before=self.eager_before,
            graph_before=self.graph_before,
            tables=self.tables,
            eager_tables=self.eager_tables,
            cells=self.cells,
            outputs=tuple(self.outputs.given),
            observation=observation,
            eager_output=self.eager_output,
            eager_calls=self.eager_calls,
            eager_storage=self.eager_storage,
            run=Run(cloned(graph_output or {}), self.calls, self.storage, self.failed),
            fresh_calls=self.fresh_calls,
            static_before=self.static_before,
            static=self.static,
            fresh=self.fresh,
            ledger=self.ledger,
            written=self.slots,
            sites=list(self.trap.sites),
            state=self.state,
            captured=self.captured,
            objects=self.objects,
            runner=self.runner,
            payload=self.payload,
        )

    def ended(self, place: int, observation: Observation | None) -> None:
        """Follow the end of a step, before anything overwrites its results."""
        self.cells.follow(place)
        if observation is not None:
            self.slots.follow(self.forward_id, self.calls)
            self.outputs.follow(place, observation.replay)

    def _run_fresh(self, planned: PlannedStep) -> tuple[Calls, dict[str, Tensor]]:
        """Return the ops and the static buffers of the fresh engine after the step."""
        if self.runner is None:
            return [], {}
        fresh = self.pair.fresh_engine
        just_captured(self.pair, planned)
        calls = run(self.pair, fresh, planned, Overrides()).calls
        return calls, copied(fresh.runners[planned.mode])


def record_forward(
    pair: Pair, schedule: Schedule, number: int, recording: Callable[..., OpRecorder] = OpRecorder
) -> RecordedForward:
    """Play a schedule up to its forward `number`, counted from 0, and record that forward.

    The worlds must not have diverged before it. Raises ValueError if there is no such forward.
    """
    with torch.inference_mode():
        pair.begin(schedule)
    recorder = recording(pair, number)
    with recorder.trap, torch.inference_mode():
        recorder.begin()
        for place, step, upcoming in schedule.ahead():
            try:
                observation = pair.step(step, place, upcoming=upcoming, recorder=recorder)
            except SubjectFailedError:
                if recorder.forwards - 1 != number:
                    raise
                return recorder.recorded(None)
            if observation is not None and recorder.forwards - 1 == number:
                return recorder.recorded(observation)
            recorder.ended(place, observation)
    raise ValueError(f"the schedule has {recorder.forwards} forwards; there is no forward {number}")


def copied(runner: GraphRunner | None) -> dict[str, Tensor]:
    """Return a runner's current static buffers, by name."""
    if runner is None:
        return {}
    return {name: buffer.clone() for name, buffer in runner.static_buffers().items()}
