"""Records one forward of a schedule: all that both worlds and the fresh engine do in it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from paritybit.harness.explain.provenance import ForwardId, SlotLedger, StaticLedger, row_requests
from paritybit.harness.explain.recorded import (
    Calls,
    EarlierOutput,
    RecordedForward,
    RepeatedRun,
    both,
    calls_of,
    copied,
    run,
)
from paritybit.harness.explain.sources import SiteTrap
from paritybit.harness.lockstep.bits import cloned
from paritybit.harness.lockstep.fresh_run import just_captured
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import ExtraRun, Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.model import Output
from paritybit.subjects.protocol import Overrides
from torch import Tensor


class OpRecorder(Recorder):
    """Records the ops of each forward in the eager world, on the fresh engine and on the subject.

    Forward `last`, counted from 0, is the one to repeat.
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
        self.outputs: list[EarlierOutput] = []
        self.sites = SiteTrap()

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
        self.tables, self.eager_tables = (
            tuple(table.clone() for table in both(pools.tables))
            for pools in (pair.graph_pools, pair.eager_pools)
        )
        if self.forwards == self.last:
            self.fresh_calls, self.fresh = self._run_fresh(planned)
            pair.restore_graph()
        self.state = self.engine.state()
        self.sites.lines.clear()
        self.forwards += 1

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
        self.failed: str | None = None
        self.static_before = copied(self.runner)
        with self.ledger.during(self.forward_id), calls_of(self.engine.ops) as calls:
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
        output: Output = {}
        if observation is not None:
            output = cloned(observation.graph.output or {})
            observation = replace(observation, static=self.static if observation.static else {})
        return RecordedForward(
            pair=self.pair,
            forward_id=self.forward_id,
            planned=self.plan,
            owners=self.owners,
            eager_before=self.eager_before,
            graph_before=self.graph_before,
            tables=self.tables,
            eager_tables=self.eager_tables,
            outputs=tuple(self.outputs),
            observation=observation,
            eager_output=self.eager_output,
            eager_calls=self.eager_calls,
            eager_storage=self.eager_storage,
            run=RepeatedRun(output, self.calls, self.storage, self.failed),
            fresh_calls=self.fresh_calls,
            static_before=self.static_before,
            static=self.static,
            fresh=self.fresh,
            ledger=self.ledger,
            written=self.slots,
            sites=self.sites,
            state=self.state,
            runner=self.runner,
        )

    def ended(self, place: int, observation: Observation | None) -> None:
        """Follow the end of a step, before anything overwrites its results."""
        if observation is not None:
            self.slots.follow(self.forward_id, self.calls)
            replay = observation.replay
            if replay is not None:
                kept = EarlierOutput(place, replay.runner, cloned(replay.live_output))
                self.outputs.append(kept)

    def _run_fresh(self, planned: PlannedStep) -> tuple[Calls, dict[str, Tensor]]:
        """Return the ops and the static buffers of the fresh engine after the step."""
        if self.runner is None:
            return [], {}
        fresh = self.pair.fresh_engine
        just_captured(self.pair, planned)
        calls = run(self.pair, fresh, planned, Overrides()).calls
        return calls, copied(fresh.runners[planned.mode])


def record_forward(
    pair: Pair, schedule: Schedule, number: int, extra_runs: Mapping[str, ExtraRun] | None = None
) -> RecordedForward:
    """Play a schedule up to its forward `number`, counted from 0, and record that forward.

    `extra_runs` are those of the pair's steps. The worlds must not have diverged before. Raises
    ValueError if there is no such forward.
    """
    with torch.inference_mode():
        pair.begin(schedule)
    recorder = OpRecorder(pair, number)
    with recorder.sites, torch.inference_mode():
        for place, step, upcoming in schedule.ahead():
            try:
                observation = pair.step(
                    step, place, extra_runs, upcoming=upcoming, recorder=recorder
                )
            except SubjectFailedError:
                if recorder.forwards - 1 != number:
                    raise
                return recorder.recorded(None)
            if observation is not None and recorder.forwards - 1 == number:
                return recorder.recorded(observation)
            recorder.ended(place, observation)
    raise ValueError(f"the schedule has {recorder.forwards} forwards; there is no forward {number}")
