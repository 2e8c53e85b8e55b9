"""The eager run and the graph run of one trial. `Pair.step` plays a step of a schedule in both.

A run has a KV pool, a scheduler that owns requests and slots, and something that runs forwards:

| | runs forwards | pool | scheduler |
|---|---|---|---|
| eager run | `eager_decoder`, the reference | `eager_pools` | `eager_scheduler` |
| graph run | `engine`, the engine under test | `graph_pools` | `graph_scheduler` |

`reset` makes both pools equal, bit by bit. Afterwards they must stay equal, and so must the
outputs.

`fresh_engine` is a second copy of the engine under test. It also works on the graph run's KV. It is
reset to its state after capture before each use, so its results depend on no earlier step.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from paritybit.harness.lockstep.config import DTYPES, FRESH_LOGGER, SUBJECT_LOGGER, TrialConfig
from paritybit.harness.lockstep.logs import LogTrap
from paritybit.harness.lockstep.observation import Observation, RunSnapshot, Sample, StepEnd
from paritybit.harness.lockstep.overlapped import OverlappedScheduler, RanForward
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.scheduler import LockstepScheduler, samples_of
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, SubjectRuns
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.allocator import PageAllocator
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Role, draft_config
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Decoder, Output
from paritybit.reference.pool import KVPools, Tables
from paritybit.subjects.engine import ReplicaEngine, Subject
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.protocol import ForwardResult

DRAFT_SEED = 1

POISON: Mapping[str, int] = dict.fromkeys(("seq_lens", "seq_lens_cpu"), 2)
"""What the harness writes to static inputs that padding does not reset, by name. The default is 1.

No input has its fill value, so a contract that keeps what padding must reset is detected.
"""

ExtraRun = Callable[["Pair", PlannedStep], Any]
"""Runs a planned step once more, before the step itself. It leaves both runs unchanged."""


class Recorder:
    """What happens around the parts of a step. A subclass may change how the forward runs.

    `engine` is the engine that ran the forward, if it is not the engine under test.
    """

    engine: ReplicaEngine | None = None

    def planned(self, pair: "Pair", planned: PlannedStep) -> None:
        """Receive a step that both runs have planned and neither has run."""

    def eager(self) -> AbstractContextManager[Any]:
        """Return a context for the eager forward."""
        return nullcontext()

    def equalizing(self) -> AbstractContextManager[Any]:
        """Return a context in which the harness writes POISON to static inputs."""
        return nullcontext()

    def run(self, pair: "Pair", planned: PlannedStep) -> ForwardResult:
        """Run the engine's forward."""
        return pair.engine.forward(planned.graph.batch, planned.mode)


NO_RECORDER = Recorder()


class Pair:
    """The two runs of one trial. Call `reset` before each schedule.

    With `records_ops`, graphs keep the inputs and outputs of each op; on a CPU they always do.
    With `alone`, there is no second engine: `fresh_engine` is the engine under test.

    - `capture_warnings`: the messages that captures logged.
    - `models`: the correct target and draft model. `run_models` are those that both runs use. A bug
      of the trial may change them.
    - `compared`: a mask in the storages' layout: all but the reserved slot of each sub-pool and the
      reserved state slot.
    - `forwards`: the number of forwards since `reset`.

    Raises SubjectFailedError if the built-in engine's own code fails as it is captured.
    """

    def __init__(
        self, trial: TrialConfig, *, records_ops: bool = False, alone: bool = False
    ) -> None:
        torch.set_num_threads(1)
        self.trial = trial
        self.records_ops = records_ops or trial.device == "cpu"
        subject = trial.subject()
        draft, sizes = draft_config(trial.model), trial.sizes
        dtype, device = DTYPES[trial.dtype], torch.device(trial.device)
        self.models = {
            Role.TARGET: Decoder(trial.model, dtype, device),
            Role.DRAFT: Decoder(draft, dtype, device, DRAFT_SEED),
        }
        self.run_models = {
            role: model.run_with(subject.model) for role, model in self.models.items()
        }
        tables = subject.parts.of(Tables)
        self.eager_pools = KVPools(trial.model, draft, sizes, dtype, device)
        self.graph_pools = KVPools(trial.model, draft, sizes, dtype, device, tables)
        self.layout = self.graph_pools.layout
        self.eager_decoder = EagerDecoder(
            trial.ops(),
            self.run_models[Role.TARGET],
            self.run_models[Role.DRAFT],
            self.eager_pools,
        )
        self.log = LogTrap()
        with self.log, torch.inference_mode(), SubjectRuns():
            self.engine = captured_engine(self, subject, SUBJECT_LOGGER)
            self.fresh_engine = self.engine
            if not alone:
                self.fresh_engine = captured_engine(self, trial.subject(), FRESH_LOGGER)
        self.capture_warnings = self.log.take()
        widest, modes = max(trial.buckets), frozenset(self.engine.runners)
        self.eager_scheduler = LockstepScheduler(self.eager_pools, widest, modes)
        of_graph = (
            *(self.graph_pools, widest, modes),
            SubjectRuns()(self.engine.ownership_changed),
            subject.parts.of(PageAllocator),
        )
        self.overlapped: OverlappedScheduler | None = None
        if trial.overlap:
            self.overlapped = OverlappedScheduler(*of_graph, overlap=subject.parts.of(Overlap)())
        self.graph_scheduler = self.overlapped or LockstepScheduler(*of_graph)
        self.eager_before, self.eager_after, self.graph_before, self.graph_after = (
            torch.empty_like(self.eager_pools.storage) for _ in range(4)
        )
        self.compared = torch.ones_like(self.eager_pools.storage, dtype=torch.bool)
        for _, _, arena in self.layout.arenas_of(self.compared):
            arena[:, :, 0] = False
        self.layout.states_of(self.compared)[0] = False
        self.forwards = 0
        self._last_output: Output = {}

    def reset(self, seed: int) -> None:
        """Make both runs equal, byte for byte, and reset the engine to its captured state."""
        self.log.take()
        self.forwards, self._last_output = 0, {}
        self.eager_scheduler.reset(seed)
        self.graph_scheduler.reset(seed)
        self.engine.reset()

    def step(
        self,
        step: Step,
        index: int = 0,
        extra_runs: Mapping[str, ExtraRun] | None = None,
        *,
        upcoming: Iterable[Step] = (),
        sampling: bool = False,
        recorder: Recorder = NO_RECORDER,
    ) -> Observation | None:
        """Play step number `index` of a schedule in both runs. Returns None if it needs no forward.

        Both schedulers plan the step, both runs run its forward, and both schedulers process the
        output of their own run.

        - `extra_runs`: run before the step, if a graph can run it. With overlapping steps, they run
          only if the forward stream lags: the other one has then written all that they read.
        - `upcoming`: the steps after this one. With overlapping steps, the graph run plans them
          while the forward is in flight.
        - `sampling`: whether the observation has samples.

        Raises SubjectFailedError if the engine fails.
        """
        with self.log:
            overwrite(self._last_output)
            self._last_output = {}
            can_run_extra = self.overlapped is None or self.overlapped.begin(self.forwards)
            planned = self.plan(step, index)
            if planned is None:
                return None
            self.eager_before.copy_(self.eager_pools.storage)
            self.graph_before.copy_(self.graph_pools.storage)
            extra = self._run_extra(planned, extra_runs or {}) if can_run_extra else {}
            recorder.planned(self, planned)
            batch = planned.eager.batch
            with recorder.eager():
                eager_output = self.eager_decoder.forward(batch) if batch is not None else None
            self.eager_after.copy_(self.eager_pools.storage)
            owners = self.graph_scheduler.owners()
            ran = self._run_graph(planned, recorder, upcoming)
            warnings = self.log.take()
            eager = RunSnapshot(
                before=self.eager_before,
                after=self.eager_after,
                mapping=self.eager_pools.tables.full_to_swa_index_mapping.clone(),
                owners=self.eager_scheduler.owners(),
                batch=batch,
                output=eager_output,
            )
            graph = RunSnapshot(
                before=self.graph_before,
                after=self.graph_after,
                mapping=ran.mapping,
                owners=owners,
                batch=ran.batch,
                output=ran.forward.output if ran.batch is not None else None,
            )
            replay, engine = ran.forward.replay, recorder.engine or self.engine
            facts = engine.facts(replay) if replay is not None else None
            self.forwards += 1
            samples: tuple[Sample, ...] = ()
            if batch is not None and eager_output is not None and ran.batch is not None:
                rows = self.eager_scheduler.commit(batch, eager_output)
                self.graph_scheduler.commit(ran.batch, ran.forward.output)
                if sampling:
                    samples = samples_of(self.eager_scheduler, index, batch, eager_output, rows)
            self._last_output = replay.output if replay is not None else {}
            return Observation(
                index=index,
                mode=planned.mode,
                layout=self.layout,
                compared=self.compared,
                eager=eager,
                graph=graph,
                replay=replay,
                facts=facts,
                expected_graph=planned.expected_graph,
                end=self.end(index),
                keys=ran.forward.keys,
                static=engine.static_buffers(planned.mode) if replay is not None else {},
                payload=self.eager_decoder.payload if batch and batch.mode is Mode.EXTEND else None,
                extra=extra,
                warnings=warnings,
                samples=samples,
            )

    def plan(self, step: Step, index: int = 0) -> PlannedStep | None:
        """Plan a step in both runs. Returns None if the step needs no forward.

        Raises SubjectFailedError if only one of the runs needs a forward.
        """
        eager, graph = self.eager_scheduler.plan(step), self.graph_scheduler.plan(step)
        if eager is None and graph is None:
            return None
        if eager is None or graph is None:
            raise SubjectFailedError(f"the eager and graph runs planned step {index} differently")
        replayed = graph.mode in self.engine.runners
        expected = eager.batch is None or (replayed and self.trial.expects_graph(eager.batch))
        return PlannedStep(index, self.forwards, eager, graph, expected)

    def _run_extra(
        self, planned: PlannedStep, extra_runs: Mapping[str, ExtraRun]
    ) -> dict[str, Any]:
        """Return the results of the extra runs by name. Empty if no graph can run the step."""
        if not (planned.expected_graph and extra_runs):
            return {}
        planned = planned.given(self.graph_scheduler.complete_batch(planned.graph))
        found = {}
        for name, run in extra_runs.items():
            try:
                found[name] = run(self, planned)
            except SubjectFailedError as error:
                error.extra_run = name
                raise
        return found

    def _run_graph(
        self, planned: PlannedStep, recorder: Recorder, upcoming: Iterable[Step]
    ) -> RanForward:
        """Run the engine's forward. Padded rows get the same values as in the fresh engine."""
        with recorder.equalizing():
            self.engine.equalize_padding(planned.mode, POISON)

        def run(batch: ForwardBatch | None, staged: ForwardBatch | None) -> RanForward:
            mapping = self.graph_pools.tables.full_to_swa_index_mapping.clone()
            with SubjectRuns():
                forward = recorder.run(self, planned.given(batch))
            self.graph_after.copy_(self.graph_pools.storage)
            return RanForward(forward, mapping, staged)

        if self.overlapped is not None:
            return self.overlapped.run(planned.graph, run, upcoming)
        return run(planned.graph.batch, planned.graph.batch)

    def end(self, index: int) -> StepEnd:
        """Return the owners of all slots in both runs after step number `index`."""
        eager, graph = self.eager_scheduler.ownership(), self.graph_scheduler.ownership()
        return StepEnd(index, self.graph_pools.sizes, eager, graph)

    def restore_graph(self) -> None:
        """Restore the graph run's KV to its bytes before this step's forwards."""
        self.graph_pools.storage.copy_(self.graph_before)

    def restore_eager(self) -> None:
        """Restore the eager run's KV to its bytes before this step's forwards."""
        self.eager_pools.storage.copy_(self.eager_before)


def overwrite(output: Output) -> None:
    """Overwrite an output with NaN, so that an engine that kept a view of it is detected.

    Integers become 0, which is a valid index.
    """
    for values in output.values():
        values.fill_(math.nan if values.is_floating_point() else 0)


def captured_engine(pair: Pair, subject: Subject, logger: logging.Logger) -> ReplicaEngine:
    """Return the built-in engine over the graph run's KV.

    It shares the storage of KV and tables with the pair, but no Python object.
    """
    trial = pair.trial
    ops = subject.parts.of(type(trial.ops()))
    return ReplicaEngine(
        ops(),
        {role: deepcopy(model) for role, model in pair.run_models.items()},
        pair.graph_pools,
        subject,
        trial.buckets,
        trial.token_buckets,
        logger,
        records_ops=pair.records_ops,
    )
