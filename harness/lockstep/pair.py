"""The pair of worlds of one trial, and the one place where a step is played in both.

The eager world has our reference, the graph world the engine under test. Beside it lies a
fresh engine: the same engine over the same KV, captured apart and given its just-captured
bytes back before each use, so that no runner of it has a history.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.lockstep.config import DTYPES, FRESH_LOGGER, SUBJECT_LOGGER, TrialConfig
from harness.lockstep.logs import LogTrap
from harness.lockstep.observation import Observation, Sample, Snapshot, tracked_rows
from harness.lockstep.python_state import Change, Held, changes, held
from harness.lockstep.requests import PlannedForward, Request
from harness.lockstep.scheduler import Scheduler
from harness.schedules.schedule import Step
from reference.batch import ForwardBatch, Mode
from reference.config import PRESETS, Role, draft_config
from reference.eager import EagerDecoder
from reference.model import Model, Output
from reference.pool import KVPools
from subjects.captured import CapturedEngine
from subjects.protocol import EngineUnderTest, Forward, Offer, PythonObjects

DRAFT_SEED = 1

Engines = tuple[EngineUnderTest, EngineUnderTest]
"""The subject, and the fresh engine beside it."""


class SubjectFailedError(Exception):
    """The subject, or the fresh engine, could not run a step."""


@contextmanager
def subject_runs() -> Iterator[None]:
    """Turn an error of what runs in here into SubjectFailedError: it is the subject's."""
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        raise SubjectFailedError(str(error).splitlines()[0]) from error


@dataclass(frozen=True)
class PlannedStep:
    """One step as both worlds planned it. `expected_graph`: a captured graph must run it.

    `forwards` counts the schedule's forwards before it.
    """

    place: int
    forwards: int
    eager: PlannedForward
    graph: PlannedForward
    expected_graph: bool

    @property
    def mode(self) -> Mode:
        """The mode of the forward."""
        return self.graph.mode


ExtraRun = Callable[["Pair", PlannedStep], Any]
"""A further run of a step, before the step itself, that leaves no trace in either world."""


class Recorder:
    """Follows the parts of a step as they run. This one records nothing."""

    def planned(self, pair: "Pair", planned: PlannedStep) -> None:
        """Follow a step that both worlds have planned and none has run."""

    def eager(self) -> AbstractContextManager[Any]:
        """Follow the eager forward."""
        return nullcontext()

    def equalizing(self) -> AbstractContextManager[Any]:
        """Follow the harness as it makes padded rows equal."""
        return nullcontext()

    def forwarding(self) -> AbstractContextManager[Any]:
        """Follow the subject's forward."""
        return nullcontext()


NO_RECORDER = Recorder()


class Pair:
    """Everything that plays one trial; reset it to a seed before each schedule.

    With `records_ops`, graphs keep what each of their ops was given and gave. On a CPU all do:
    a tape holds it anyway, where a CUDA graph would reuse the memory. `engines` builds the
    engines under test over the graph world's pools; SharedBufferError is raised if ours
    cannot be built. `just_captured` is what their Python objects held then.
    """

    def __init__(
        self,
        config: TrialConfig,
        *,
        records_ops: bool = False,
        engines: "Callable[[Pair], Engines] | None" = None,
    ) -> None:
        torch.set_num_threads(1)
        self.records_ops = records_ops or config.device == "cpu"
        self.trial = config
        self.config = PRESETS[config.preset].tiny
        draft = draft_config(self.config)
        dtype, device = DTYPES[config.dtype], torch.device(config.device)
        self.model = Model(self.config, dtype, device)
        self.draft = Model(draft, dtype, device, DRAFT_SEED)
        self.eager_pools = KVPools(self.config, draft, config.sizes, dtype, device)
        self.graph_pools = KVPools(self.config, draft, config.sizes, dtype, device)
        self.layout = self.graph_pools.layout
        self.decoder = EagerDecoder(config.ops(), self.model, self.draft, self.eager_pools)
        self.log = LogTrap()
        with self.log, torch.inference_mode():
            self.subject, self.fresh_engine = (engines or captured_engines)(self)
            self.just_captured = self.python_state().copied()
        self.capture_warnings = self.log.take()
        widest = max(config.buckets)
        self.modes = frozenset(mode for mode in Mode if self.subject.runner_name(mode) is not None)
        lacks = self.subject.missing.keys()
        self.eager = Scheduler(self.config, self.eager_pools, widest, self.modes, lacks=lacks)
        self.graph = Scheduler(
            self.config,
            self.graph_pools,
            widest,
            self.modes,
            self.subject.ownership_changed,
            lacks,
        )
        self.compared = torch.ones_like(self.eager_pools.storage, dtype=torch.bool)
        for _, _, arena in self.layout.arenas_of(self.compared):
            arena[:, :, 0] = False  # The reserved slot is compared nowhere.
        self.forwards = 0
        self._snapshots = [torch.empty_like(self.eager_pools.storage) for _ in range(4)]

    @property
    def models(self) -> Mapping[Role, Model]:
        """The target and the draft model, which both worlds share."""
        return {Role.TARGET: self.model, Role.DRAFT: self.draft}

    def reset(self, seed: int) -> None:
        """Make both worlds equal, byte for byte, and the subject just captured."""
        self.log.take()
        self.forwards = 0
        self.eager.reset(seed)
        self.graph.reset(seed)
        self.subject.reset()

    def undeclared(self) -> list[Change]:
        """Reset both engines; return what they hold and did not when they were just captured."""
        return changes(self.just_captured, self.python_state(self.just_captured.modules))

    def python_state(self, modules: frozenset[str] | None = None) -> Held:
        """Reset both engines; return what the objects hold of those that can show theirs.

        Of their modules, all that are loaded, or those given.
        """
        objects: dict[str, PythonObjects] = {}
        if Offer.PYTHON_STATE not in self.subject.missing:
            self.subject.reset()
            objects["engine"] = self.subject.python_objects()
        if Offer.PYTHON_STATE not in self.fresh_engine.missing:
            self.fresh_engine.recapture()
            objects["fresh engine"] = self.fresh_engine.python_objects()
        return held(objects, modules)

    def plan(self, step: Step, place: int = 0) -> PlannedStep | None:
        """Plan a step in both worlds; None if it asks for no forward.

        Raises RuntimeError if it asks for one in one world alone.
        """
        eager, graph = self.eager.plan(step), self.graph.plan(step)
        if eager is None and graph is None:
            return None
        if eager is None or graph is None:
            raise RuntimeError(f"the worlds planned step {place} differently")
        expected = graph.batch is None or (
            graph.mode in self.modes and self.trial.expects_graph(graph.batch)
        )
        return PlannedStep(place, self.forwards, eager, graph, expected)

    def step(
        self,
        step: Step,
        place: int = 0,
        extra_runs: Mapping[str, ExtraRun] | None = None,
        *,
        sampling: bool = False,
        recorder: Recorder = NO_RECORDER,
    ) -> Observation | None:
        """Play one step in both worlds: plan, run, observe, commit. None if it runs no forward.

        `extra_runs` run first, where a graph can run the step, by the name of what asks for
        them. With `sampling`, each request that sampled is observed. Raises SubjectFailedError
        if the subject fails; what else fails raises its own error.
        """
        with self.log:
            planned = self.plan(step, place)
            if planned is None:
                return None
            self._keep_before()
            wanted = (extra_runs or {}) if planned.expected_graph else {}
            extra = {name: run(self, planned) for name, run in wanted.items()}
            recorder.planned(self, planned)
            with recorder.eager():
                batch = planned.eager.batch
                eager_output = self.decoder.forward(batch) if batch is not None else None
            forward = self.run_subject(planned, recorder)
            eager, graph = self._snapshots_after(planned, eager_output, forward)
            warnings = self.log.take()
            replay = forward.replay
            self.forwards += 1
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
                facts=self.subject.facts(replay) if replay is not None else None,
                expected_graph=planned.expected_graph,
                extra=extra,
                warnings=warnings,
                samples=self._commit(planned, eager_output, forward, sampling=sampling),
            )

    def run_subject(self, planned: PlannedStep, recorder: Recorder = NO_RECORDER) -> Forward:
        """Run a planned forward on the subject, with padded rows made equal first."""
        with recorder.equalizing():
            self.subject.equalize_padding(planned.mode)
        with recorder.forwarding(), subject_runs():
            forward = self.subject.forward(planned.graph.batch, planned.mode)
        self.subject.read_kv()
        return forward

    def run_fresh(self, planned: PlannedStep) -> Forward:
        """Run a planned forward on the fresh engine, just captured, with padded rows made equal.

        The caller gives the graph world's storage its bytes back: see `restore_graph`.
        """
        fresh = self.fresh_engine
        fresh.write_kv()
        fresh.recapture()
        fresh.equalize_padding(planned.mode)
        with subject_runs():
            forward = fresh.forward(planned.graph.batch, planned.mode)
        fresh.read_kv()
        return forward

    def restore_graph(self) -> None:
        """Give the graph world's KV the bytes that it had before this step's forwards."""
        self.graph_pools.storage.copy_(self._snapshots[1])
        self.subject.write_kv()

    def restore_eager(self) -> None:
        """Give the eager world's KV the bytes that it had before this step's forwards."""
        self.eager_pools.storage.copy_(self._snapshots[0])

    def _keep_before(self) -> None:
        self._snapshots[0].copy_(self.eager_pools.storage)
        self._snapshots[1].copy_(self.graph_pools.storage)

    def _snapshots_after(
        self, planned: PlannedStep, eager_output: Output | None, forward: Forward
    ) -> tuple[Snapshot, Snapshot]:
        """Return what both worlds are right after their forwards."""
        self._snapshots[2].copy_(self.eager_pools.storage)
        self._snapshots[3].copy_(self.graph_pools.storage)
        graph_output = forward.output if planned.graph.batch is not None else None
        sides = (
            (0, self.eager, planned.eager, eager_output),
            (1, self.graph, planned.graph, graph_output),
        )
        eager, graph = (
            Snapshot(
                before=self._snapshots[place],
                after=self._snapshots[place + 2],
                mapping=world.pools.tables.full_to_swa_index_mapping.clone(),
                req_to_token=world.pools.tables.req_to_token.clone(),
                owners=world.owners(),
                batch=work.batch,
                output=output,
            )
            for place, world, work, output in sides
        )
        return eager, graph

    def _commit(
        self, planned: PlannedStep, eager_output: Output | None, forward: Forward, *, sampling: bool
    ) -> tuple[Sample, ...]:
        """Let both worlds follow what their forwards gave; return what requests sampled."""
        batch = planned.eager.batch
        if batch is None or planned.graph.batch is None:
            return ()
        assert eager_output is not None
        rows = self.eager.commit(batch, eager_output)
        graph_rows = self.graph.commit(planned.graph.batch, forward.output)
        self.subject.write_kv()
        if not sampling:
            return ()
        samples = samples_of(self.eager, batch, eager_output, rows)
        if self.subject.arithmetic is not None:
            samples += [
                replace(sample, arithmetic=self.subject.arithmetic)
                for sample in samples_of(
                    self.graph, planned.graph.batch, forward.output, graph_rows
                )
            ]
        return tuple(samples)


def samples_of(
    world: Scheduler, batch: ForwardBatch, output: Output, rows: Sequence[int]
) -> list[Sample]:
    """Return what the requests of a batch are after `output`, whose `rows` said their next tokens.

    A draft model's logits are sampled of the requests that it has caught up on.
    """
    draft = batch.mode is Mode.DRAFT_EXTEND
    requests = [world.request_of(span.row) for span in batch.spans]
    wanted = range(batch.live_requests) if draft else rows
    return [
        sample_of(world, request, output["logits"][row], draft=draft)
        for request, row in zip(requests, wanted, strict=False)
        if not draft or request.drafted == request.length
    ]


def sample_of(world: Scheduler, request: Request, logits: Tensor, *, draft: bool) -> Sample:
    """Return what `request` is after the target, or its draft, gave these logits."""
    tokens, length = world.tokens[request.token_row], request.length
    hidden = world.hidden_states[request.token_row, :length]
    return Sample(
        serial=request.serial,
        tokens=tokens[draft : length + draft].clone(),
        logits=logits.clone(),
        tracked=tracked_rows(length, request.track_index, tracked=world.tracked(request)),
        mrope_delta=request.mrope_delta,
        encoder_len=world.encoder_len(request),
        prefilled=request.prefilled,
        hidden_states=hidden.clone() if draft else None,
    )


def cloned(output: Output) -> Output:
    """Return an output that later replays leave alone."""
    return {name: values.clone() for name, values in output.items()}


def captured_engines(pair: Pair) -> Engines:
    """Return our own engine, captured twice: no Python object of the one is the other's."""
    subject = captured_engine(pair, SUBJECT_LOGGER)
    fresh = captured_engine(pair, FRESH_LOGGER)
    subject.count_allocations()
    return subject, fresh


def subject_alone(pair: Pair) -> Engines:
    """Return our own engine in both places, for what asks for no fresh engine."""
    subject = captured_engine(pair, SUBJECT_LOGGER)
    subject.count_allocations()
    return subject, subject


def captured_engine(pair: Pair, logger: logging.Logger) -> CapturedEngine:
    """Return our own engine, captured over the graph world's KV and tables.

    It shares these tensors and those of weights with the pair, and no object of the pair's.
    """
    trial = pair.trial
    return CapturedEngine(
        trial.ops(),
        {role: model.alike() for role, model in pair.models.items()},
        pair.graph_pools.alike(),
        trial.subject(),
        trial.buckets,
        trial.token_buckets,
        logger,
        records_ops=pair.records_ops,
    )
