"""The two runs of a trial. `Pair.step` plays each step in both.

A run is a KV pool, a scheduler and an engine that runs forwards. The eager run has the eager
reference, the graph run the engine under test. The two pools start with equal bits.

A third engine, the fresh engine, is a second copy of the engine under test over the same KV. It
is reset to its state after capture before each use, so its results depend on no earlier step.
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
from paritybit.harness.lockstep.observation import Observation, Sample, Snapshot, StepEnd
from paritybit.harness.lockstep.overlapped import OverlappedScheduler, RanForward
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.scheduler import Scheduler, samples_of
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, SubjectRuns
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.allocator import Owner, PageAllocator
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Role, draft_config
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Decoder, Output
from paritybit.reference.pool import KVPools, Tables
from paritybit.subjects.engine import ReplicaEngine, Subject
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.protocol import ForwardResult

DRAFT_SEED = 1

TAILS: Mapping[str, int] = dict.fromkeys(("seq_lens", "seq_lens_cpu"), 2)
"""The values of the tails that padding keeps, by static buffer. The default is 1.

No input has its fill value, so a contract that keeps what padding must reset is detected.
"""

ExtraRun = Callable[["Pair", PlannedStep], Any]
"""Runs a planned step once more, before the step itself. It leaves both runs unchanged."""


class Recorder:
    """Callbacks around the parts of a step. This class runs the subject's forward, and no more.

    `engine` is the engine that ran the forward, if it is not the engine under test.
    """

    engine: ReplicaEngine | None = None

    def planned(self, pair: "Pair", planned: PlannedStep) -> None:
        """Receive a step that both runs have planned and neither has run."""

    def eager(self) -> AbstractContextManager[Any]:
        """Return a context for the eager forward."""
        return nullcontext()

    def equalizing(self) -> AbstractContextManager[Any]:
        """Return a context in which the harness equalizes the tails that padding does not reset."""
        return nullcontext()

    def run(self, pair: "Pair", planned: PlannedStep) -> ForwardResult:
        """Run the subject's forward."""
        return pair.subject.forward(planned.graph.batch, planned.mode)


NO_RECORDER = Recorder()


class Pair:
    """The two runs of one trial. Call `reset` before each schedule.

    With `records_ops`, graphs keep the inputs and outputs of each op; on a CPU they always do.
    With `alone`, the subject is its own fresh engine. Use it if nothing needs the fresh engine.
    `capture_warnings` are the messages that captures logged. `compared` is a mask in the storages'
    layout: all but the reserved slot of each sub-pool and the reserved state slot.

    Raises SubjectFailedError if the built-in engine's own code fails as it is captured.
    """

    def __init__(
        self,
        config: TrialConfig,
        *,
        records_ops: bool = False,
        alone: bool = False,
    ) -> None:
        torch.set_num_threads(1)
        self.records_ops = records_ops or config.device == "cpu"
        self.trial = config
        self.config = config.model
        drafting = draft_config(self.config)
        dtype, device = DTYPES[config.dtype], torch.device(config.device)
        self.model = Decoder(self.config, dtype, device)
        self.draft = Decoder(drafting, dtype, device, DRAFT_SEED)
        self.eager_pools = KVPools(self.config, drafting, config.sizes, dtype, device)
        self.on_trial = config.subject()
        self.run_models = {
            role: model.run_with(self.on_trial.model) for role, model in self.models.items()
        }
        parts = self.on_trial.parts
        tables = parts.of(Tables)
        self.graph_pools = KVPools(self.config, drafting, config.sizes, dtype, device, tables)
        self.layout = self.graph_pools.layout
        models = self.run_models[Role.TARGET], self.run_models[Role.DRAFT]
        self.decoder = EagerDecoder(config.ops(), *models, self.eager_pools)
        self.log = LogTrap()
        with self.log, torch.inference_mode(), SubjectRuns():
            self.subject = captured_engine(self, self.on_trial, SUBJECT_LOGGER)
            self.fresh_engine = self.subject
            if not alone:
                self.fresh_engine = captured_engine(self, config.subject(), FRESH_LOGGER)
        self.capture_warnings = self.log.take()
        widest = max(config.buckets)
        self.modes = frozenset(self.subject.runners)
        self.eager = Scheduler(self.config, self.eager_pools, widest, self.modes)
        following = SubjectRuns()(self.subject.ownership_changed)
        allocator = parts.of(PageAllocator)
        of_graph = self.config, self.graph_pools, widest, self.modes, following, allocator
        self.overlapped: OverlappedScheduler | None = None
        if config.overlap:
            overlap = parts.of(Overlap)()
            self.overlapped = OverlappedScheduler(*of_graph, overlap=overlap)
        self.graph: Scheduler = self.overlapped or Scheduler(*of_graph)
        self.eager_before, self.eager_after, self.graph_before, self.graph_after = (
            torch.empty_like(self.eager_pools.storage) for _ in range(4)
        )
        self.compared = torch.ones_like(self.eager_pools.storage, dtype=torch.bool)
        for _, _, arena in self.layout.arenas_of(self.compared):
            arena[:, :, 0] = False
        self.layout.states_of(self.compared)[0] = False
        self.forwards = 0
        self._consumed: Output = {}

    @property
    def models(self) -> Mapping[Role, Decoder]:
        """The correct target and draft model. The runs run `run_models`, which may have bugs."""
        return {Role.TARGET: self.model, Role.DRAFT: self.draft}

    def reset(self, seed: int) -> None:
        """Make both runs equal, byte for byte, and reset the subject to its captured state."""
        self.log.take()
        self.forwards, self._consumed = 0, {}
        self.eager.reset(seed)
        self.graph.reset(seed)
        self.subject.reset()

    def plan(self, step: Step, place: int = 0) -> PlannedStep | None:
        """Plan a step in both runs. Returns None if the step needs no forward.

        Raises SubjectFailedError if only one of the runs needs a forward.
        """
        eager, graph = self.eager.plan(step), self.graph.plan(step)
        if eager is None and graph is None:
            return None
        if eager is None or graph is None:
            raise SubjectFailedError(f"the eager and graph runs planned step {place} differently")
        replayed = graph.mode in self.subject.runners
        expected = eager.batch is None or (replayed and self.trial.expects_graph(eager.batch))
        return PlannedStep(place, self.forwards, eager, graph, expected)

    def step(
        self,
        step: Step,
        place: int = 0,
        extra_runs: Mapping[str, ExtraRun] | None = None,
        *,
        upcoming: Iterable[Step] = (),
        sampling: bool = False,
        recorder: Recorder = NO_RECORDER,
    ) -> Observation | None:
        """Play one step in both runs: plan, run, observe, commit. None if it runs no forward.

        `extra_runs`, by name, run before the step if a graph can run it, and with overlapping
        steps only if the forward stream lags, because all that they read is then written. The graph
        run then plans the `upcoming` steps while the forward is in flight. With `sampling`, the
        observation has samples. Raises SubjectFailedError if the subject fails.
        """
        with self.log:
            spoil(self._consumed)
            self._consumed = {}
            can_run_extra = self.overlapped is None or self.overlapped.begin(self.forwards)
            planned = self.plan(step, place)
            if planned is None:
                return None
            self.eager_before.copy_(self.eager_pools.storage)
            self.graph_before.copy_(self.graph_pools.storage)
            extra = self._run_extra(planned, extra_runs or {}) if can_run_extra else {}
            recorder.planned(self, planned)
            batch = planned.eager.batch
            with recorder.eager():
                eager_output = self.decoder.forward(batch) if batch is not None else None
            self.eager_after.copy_(self.eager_pools.storage)
            owners, ran = self.graph.owners(), self._run_graph(planned, recorder, upcoming)
            planned = planned.given(ran.batch)
            warnings = self.log.take()
            eager, graph = self._snapshots_after(planned, eager_output, ran, owners)
            replay, engine = ran.forward.replay, recorder.engine or self.subject
            facts = engine.facts(replay) if replay is not None else None
            self.forwards += 1
            samples = self._commit(planned, eager_output, ran.forward, sampling=sampling)
            self._consumed = replay.output if replay is not None else {}
            return Observation(
                place=place,
                step=step,
                mode=planned.mode,
                under_test=self.trial.runner,
                layout=self.layout,
                compared=self.compared,
                eager=eager,
                graph=graph,
                replay=replay,
                facts=facts,
                expected_graph=planned.expected_graph,
                end=self.end(place),
                keys=ran.forward.keys,
                static=engine.static_buffers(planned.mode) if replay is not None else {},
                payload=self.decoder.payload if batch and batch.mode is Mode.EXTEND else None,
                extra=extra,
                warnings=warnings,
                samples=samples,
            )

    def _run_extra(
        self, planned: PlannedStep, extra_runs: Mapping[str, ExtraRun]
    ) -> dict[str, Any]:
        """Return the results of the extra runs by name. Empty if no graph can run the step."""
        if not (planned.expected_graph and extra_runs):
            return {}
        planned = planned.given(self.graph.filled(planned.graph).batch)
        found = {}
        for name, run in extra_runs.items():
            try:
                found[name] = run(self, planned)
            except SubjectFailedError as error:
                error.extra_run = name
                raise
        return found

    def end(self, place: int) -> StepEnd:
        """Return the owners of all slots in both runs after the step at `place`."""
        sizes = self.graph_pools.sizes
        return StepEnd(place, sizes, self.eager.ownership(), self.graph.ownership())

    def _run_graph(
        self, planned: PlannedStep, recorder: Recorder, upcoming: Iterable[Step]
    ) -> RanForward:
        """Equalize the padded rows, and run the subject's forward."""
        with recorder.equalizing():
            self.subject.equalize_padding(planned.mode, TAILS)

        def run(batch: ForwardBatch | None, staged: ForwardBatch | None) -> RanForward:
            mapping = self.graph_pools.tables.full_to_swa_index_mapping.clone()
            with SubjectRuns():
                forward = recorder.run(self, planned.given(batch))
            self.graph_after.copy_(self.graph_pools.storage)
            return RanForward(forward, mapping, staged)

        if self.overlapped is not None:
            return self.overlapped.run(planned.graph, run, upcoming)
        return run(planned.graph.batch, planned.graph.batch)

    def restore_graph(self) -> None:
        """Restore the graph run's KV to its bytes before this step's forwards."""
        self.graph_pools.storage.copy_(self.graph_before)

    def restore_eager(self) -> None:
        """Restore the eager run's KV to its bytes before this step's forwards."""
        self.eager_pools.storage.copy_(self.eager_before)

    def _snapshots_after(
        self,
        planned: PlannedStep,
        eager_output: Output | None,
        ran: RanForward,
        graph_owners: tuple[Owner, ...],
    ) -> tuple[Snapshot, Snapshot]:
        """Return snapshots of both runs right after their forwards, the eager run's first."""
        eager = Snapshot(
            before=self.eager_before,
            after=self.eager_after,
            mapping=self.eager_pools.tables.full_to_swa_index_mapping.clone(),
            owners=self.eager.owners(),
            batch=planned.eager.batch,
            output=eager_output,
        )
        graph = Snapshot(
            before=self.graph_before,
            after=self.graph_after,
            mapping=ran.mapping,
            owners=graph_owners,
            batch=ran.batch,
            output=ran.output if ran.batch is not None else None,
        )
        return eager, graph

    def _commit(
        self,
        planned: PlannedStep,
        eager_output: Output | None,
        forward: ForwardResult,
        *,
        sampling: bool,
    ) -> tuple[Sample, ...]:
        """Pass the outputs to both schedulers. Returns the samples if `sampling`, else none."""
        batch = planned.eager.batch
        if batch is None or planned.graph.batch is None:
            return ()
        assert eager_output is not None
        rows = self.eager.commit(batch, eager_output)
        self.graph.commit(planned.graph.batch, forward.output)
        if not sampling:
            return ()
        return samples_of(self.eager, planned.place, batch, eager_output, rows)


def spoil(output: Output) -> None:
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
