"""sglang on trial: loaded once into this process, its runners built for each pair."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines.adapters.adapter import EnginesOf, PairsByEngines, world_of
from paritybit.harness.engines.faults import FAULTS, Fault
from paritybit.harness.engines.playlist import RUNNERS, Kind, Runner, trial_of
from paritybit.harness.lockstep.config import DTYPES, TrialConfig
from paritybit.harness.lockstep.pair import Engines, Pair
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS, SPECULATION, full_draft_config
from paritybit.reference.model import Model
from paritybit.reference.state_pool import StatePool
from paritybit.subjects.engines.sglang import PACKAGE
from paritybit.subjects.engines.sglang.draft_engine import DraftingEngine
from paritybit.subjects.engines.sglang.engine import NO_TRACKING, ReplayingEngine
from paritybit.subjects.engines.sglang.host.host import Host, server_arguments
from paritybit.subjects.engines.sglang.host.loading import load_sglang
from paritybit.subjects.engines.sglang.host.settings import DECLARED
from paritybit.subjects.engines.sglang.memory.mirror import Mirror
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.model.attention import UnplannedError
from paritybit.subjects.engines.sglang.runners.decode import (
    CpuGraphRunner,
    DecodeRunner,
    ReplayingRunner,
)
from paritybit.subjects.engines.sglang.runners.draft_extend import EagleDraftExtendRunner
from paritybit.subjects.engines.sglang.runners.drafting import DraftingRunner
from paritybit.subjects.engines.sglang.runners.eagle_draft import EagleDraftRunner
from paritybit.subjects.engines.sglang.runners.frozen_draft import FrozenKvMtpRunner
from paritybit.subjects.engines.sglang.runners.prefill import BreakableRunner, PiecewiseRunner
from paritybit.subjects.engines.sglang.runners.verify import TargetVerifyRunner
from paritybit.subjects.engines.sglang.scheduling.batches import SglangBatches, reserves_for_drafts
from paritybit.subjects.engines.shared import graphs, interpreter
from paritybit.subjects.engines.shared.graphs import Replays
from paritybit.subjects.engines.shared.loading import Engine, message

REPLAYING: Mapping[str, type[ReplayingRunner]] = {
    runner.name: runner
    for runner in (
        DecodeRunner,
        TargetVerifyRunner,
        CpuGraphRunner,
        PiecewiseRunner,
        BreakableRunner,
    )
}
SPECULATING: Mapping[str, type[DraftingRunner]] = {
    runner.name: runner for runner in (EagleDraftRunner, EagleDraftExtendRunner, FrozenKvMtpRunner)
}
"""The engine's runners that a pair is played with, by name."""


def load(package: Path, dependencies: Path, device: str) -> Engine:
    """Load an engine into this process, graphs emulated and Triton interpreted without a GPU."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        graphs.emulate(TrialConfig(device=device).ops())
        graphs.implement_on_cpu(PACKAGE)
        interpreter.quicken()
    graphs.count_replays()
    os.environ.update(DECLARED["environment"])
    return load_sglang(package, dependencies, device)


def host_of(engine: Engine, trial: TrialConfig, asked: set[str]) -> Host:
    """Return new stand-ins for what the engine finds around it."""
    settings = server_arguments(trial.buckets, trial.token_buckets, trial.page_size, asked)
    return Host(engine, settings, trial.device, asked)


def pool_of(
    engine: Engine, model: Model, trial: TrialConfig, states: StatePool | None = None
) -> SglangPool:
    """Return a new pool of the engine, of a trial's sizes, with the states of a world, if any."""
    return SglangPool(
        engine,
        model.config,
        trial.sizes,
        DTYPES[trial.dtype],
        trial.device,
        states,
        ahead=slots_ahead(engine, trial),
    )


def mirror_of(pair: Pair, host: Host, pool: SglangPool, *, lagging: bool = False) -> Mirror:
    """Return the engine's side of the graph world's requests, which is made after the engines.

    With `lagging`, the windows of a draft model that lags reach further back than the target's.
    """
    batches = SglangBatches(host, pool, pair.model, lagging=lagging)
    return Mirror(pool, world_of(pair), batches)


@dataclass
class RunnerEngines(EnginesOf):
    """Builds a runner and a fresh one beside it, over one pool of the engine.

    With `shares`, the runner shares static buffers with those built before it; AssertionError is
    raised where the engine does not allow that.
    """

    shares: bool = False

    def __call__(self, pair: Pair) -> Engines:
        """Build both over the graph world of a pair."""
        # Its modules bind what stands around it as they are imported: that comes first.
        host = host_of(self.engine, pair.trial, self.asked)
        states = pair.graph_pools.state
        pool = pool_of(self.engine, pair.model, pair.trial, states)
        mirror = mirror_of(pair, host, pool)
        if not self.shares:
            host.forget_shared_buffers()
        subject = self._build(pair, mirror, host)
        if self.missing:
            return subject, subject
        other = host_of(self.engine, pair.trial, self.asked)
        other.forget_shared_buffers()
        return self.apart(subject, self._build(pair, mirror, other))

    def _build(self, pair: Pair, mirror: Mirror, host: Host) -> ReplayingEngine:
        kind = REPLAYING[pair.trial.runner]
        before = Replays.captured
        with mirror.pool.stored_locations() as stored:
            runner = kind(
                host, pair.model, mirror.pool, pair.trial.ops(), own_kernels=self.own_kernels
            )
        runner.find_locations(stored)
        graphs = graphs_of_a_replay(before, pair.trial, kind)
        missing = self.missing
        if not (self.eagerly or runner.carries_states):
            missing |= NO_TRACKING
        return ReplayingEngine(runner, mirror, stored, graphs, missing)


class DraftingEngines(EnginesOf):
    """Builds a speculative runner and a fresh one beside it, over one pool of the engine."""

    def __call__(self, pair: Pair) -> Engines:
        """Build both over the graph world of a pair."""
        # Its modules bind what stands around it as they are imported: that comes first.
        host, trial = host_of(self.engine, pair.trial, self.asked), pair.trial
        pool = SglangPool(
            self.engine,
            pair.config,
            trial.sizes,
            DTYPES[trial.dtype],
            trial.device,
            pair.graph_pools.state,
            pair.draft.config,
            spare=spare_slots(trial),
            ahead=slots_ahead(self.engine, trial),
        )
        mirror = mirror_of(pair, host, pool, lagging=True)
        subject = self._build(pair, mirror, host)
        fresh = self._build(pair, mirror, host_of(self.engine, trial, self.asked))
        return self.apart(subject, fresh)

    def _build(self, pair: Pair, mirror: Mirror, host: Host) -> DraftingEngine:
        kind, before = SPECULATING[pair.trial.runner], Replays.captured
        host.forget_shared_buffers()
        with mirror.pool.stored_locations() as stored:
            runner = kind(host, pair.models, mirror.pool, pair.trial.ops())
        graphs = graphs_of_a_replay(before, pair.trial, kind)
        return DraftingEngine(runner, mirror, stored, graphs, {})


def graphs_of_a_replay(before: int, trial: TrialConfig, kind: type[ReplayingRunner]) -> int:
    """Return how many graphs each size of a runner has, `before` being those captured before it."""
    sizes = trial.token_buckets if kind.mode is Mode.EXTEND else trial.buckets
    return (Replays.captured - before) // len(sizes)


def spare_slots(trial: TrialConfig) -> int:
    """Return the slots of tokens that were not accepted, of a full batch, in whole pages."""
    tokens = max(trial.buckets) * SPECULATION.draft_tokens
    return -(-tokens // trial.page_size) * trial.page_size


def slots_ahead(engine: Engine, trial: TrialConfig) -> int:
    """Return how many slots an engine may hold of a request for drafts to come: 0 without such.

    It reserves twice what a step takes: a slot for each draft of each branch or, with pages, as
    many as lie in the pages that each branch may touch.
    """
    drafting = trial.runner in SPECULATING or trial.runner == TargetVerifyRunner.name
    if not (drafting and reserves_for_drafts(engine)):
        return 0
    size = trial.page_size
    branch = -(-(SPECULATION.steps + size - 1) // size) * size
    step = max(SPECULATION.topk * branch, SPECULATION.draft_tokens)
    return -(-2 * step // size) * size + size


def encoder_refusal(engine: Engine, model: Model, trial: TrialConfig) -> str | None:
    """Return why a model with windows cannot have an encoder in the engine; None if it can."""
    host, pool = host_of(engine, trial, set()), pool_of(engine, model, trial)
    host.encoder_decoder = True
    host.forget_shared_buffers()
    try:
        DecodeRunner(host, model, pool, trial.ops(), own_kernels=False)
    except AssertionError as error:
        return str(error).strip().partition("\n")[0] or message(error)
    return None


def drafting_lockstep(
    engine: Engine, trial: TrialConfig, asked: set[str] | None = None
) -> tuple[Lockstep, str | None]:
    """Return a pair with the trial's speculative runner, and why its draft has no windows.

    The draft model has a window layer, unless the engine says that it cannot capture the runner
    with one: its backend lists no keys for it, or an assertion of its own fails. It then has full
    layers alone, and what went wrong is said. `asked` collects the settings that the engine asked
    for and nobody declared. Raises what else the engine raises.
    """
    engines = DraftingEngines(engine, set() if asked is None else asked)
    try:
        return Lockstep(trial, engines=engines), None
    except (UnplannedError, AssertionError) as error:
        refused = message(error)
    return Lockstep(trial, engines=engines, draft=full_draft_config), refused


class SglangAdapter(PairsByEngines):
    """The adapter of sglang: see `Adapter`."""

    name = PACKAGE
    builds = RunnerEngines
    runners: Mapping[str, Runner] = RUNNERS
    undriven: Mapping[str, str] = {}
    faults: Mapping[str, Fault] = FAULTS
    emulated: tuple[str, ...] = tuple(DECLARED["emulated"].values())

    def load(self, package: Path, dependencies: Path, device: str) -> Engine:
        """Load a release or a source tree into this process."""
        return load(package, dependencies, device)

    def trial_of(self, runner: str, preset: str, kind: Kind, device: str) -> TrialConfig:
        """Return the settings of a leg."""
        return trial_of(runner, preset, kind, device)

    def lockstep(
        self, engine: Engine, trial: TrialConfig, asked: set[str]
    ) -> tuple[Lockstep, str | None]:
        """Return a pair with the runner, whose static buffers are its own, and what is to note."""
        if trial.runner not in SPECULATING:
            return super().lockstep(engine, trial, asked)
        lockstep, refused = drafting_lockstep(engine, trial, asked)
        note = (
            f"its draft model has no windows, because with windows {refused}" if refused else None
        )
        return lockstep, note

    def sharing(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep | None:
        """Return a pair with the runner built beside the decode runner, whose buffers it shares.

        None for a runner that shares none. Raises AssertionError where the engine refuses.
        """
        if trial.runner == "decode" or trial.runner in SPECULATING:
            return None
        self.lockstep(engine, replace(trial, runner="decode"), asked)
        return Lockstep(trial, engines=RunnerEngines(engine, asked=asked, shares=True))

    def without_encoder(self, engine: Engine, trial: TrialConfig) -> str | None:
        """Return why a model with windows has no encoder lengths; None if it may."""
        config = PRESETS[trial.preset].tiny
        model = Model(config, torch.float32, torch.device(trial.device))
        return encoder_refusal(engine, model, trial)
