"""vLLM on trial: loaded once into this process, its model runner built for each pair."""

from collections.abc import Mapping
from pathlib import Path

from paritybit.harness.engines.adapters.adapter import EnginesOf, PairsByEngines, world_of
from paritybit.harness.engines.adapters.packages import VLLM
from paritybit.harness.engines.adapters.vllm_faults import FAULTS
from paritybit.harness.engines.faults import Fault
from paritybit.harness.engines.playlist import EAGERLY_TOO, EVERY_WAY, Kind, Runner
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Engines, Pair
from paritybit.reference.config import Role
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.vllm.drafter import DraftingRunner
from paritybit.subjects.engines.vllm.engine import DraftingEngine, VllmEngine
from paritybit.subjects.engines.vllm.loading import load_vllm
from paritybit.subjects.engines.vllm.pieces import BreakableRunner, PiecewiseRunner
from paritybit.subjects.engines.vllm.requests import VllmRequests
from paritybit.subjects.engines.vllm.runner import VllmRunner
from paritybit.subjects.engines.vllm.settings import BLOCK, DECLARED
from paritybit.subjects.runners import RUNNERS as OURS

PAGES = 24
"""Pages of either sub-pool of the world: those of the longest requests, one a row."""


BUILT: Mapping[str, tuple[type[VllmRunner], type[VllmEngine]]] = {
    "decode": (VllmRunner, VllmEngine),
    "target_verify": (VllmRunner, VllmEngine),
    "piecewise": (PiecewiseRunner, VllmEngine),
    "breakable": (BreakableRunner, VllmEngine),
    "eagle_draft": (DraftingRunner, DraftingEngine),
    "eagle_draft_extend": (DraftingRunner, DraftingEngine),
}
"""What each runner is built by, and its engine."""


class VllmEngines(EnginesOf):
    """Builds the engine's runner and a fresh one beside it, over the same KV and requests."""

    def __call__(self, pair: Pair) -> Engines:
        """Build both over the graph world of a pair."""
        trial, mode = pair.trial, OURS[pair.trial.runner].mode
        kind, made = BUILT[trial.runner]
        buckets = trial.token_buckets if kind.pieces else trial.buckets
        # The world's pages are counted by sub-pool; the engine has one pool of blocks for both.
        sizes = () if self.eagerly else buckets, trial.rows, 1 + 2 * PAGES
        built = pair.models, mode, trial.ops(), *sizes, self.asked
        runner = kind(self.engine, *built, own_kernels=self.own_kernels)
        world = world_of(pair, lags=Role.DRAFT in runner.roles)
        requests = VllmRequests(self.engine, world, runner)
        subject = made(trial.runner, mode, runner, requests, self.missing)
        if self.missing:
            return subject, subject
        return self.apart(subject, made(trial.runner, mode, runner.fresh(), requests, {}))


class VllmAdapter(PairsByEngines):
    """The adapter of vLLM: see `Adapter`."""

    name = VLLM.name
    builds = VllmEngines
    runners: Mapping[str, Runner] = {
        "decode": Runner("cuda graph", ("gpt_oss", "gemma3"), EVERY_WAY),
        "target_verify": Runner("speculative", kinds=EAGERLY_TOO),
        "piecewise": Runner("piecewise"),
        "breakable": Runner("breakable"),
        "eagle_draft": Runner("EAGLE", kinds=EAGERLY_TOO),
        "eagle_draft_extend": Runner("prefill cuda graph", kinds=EAGERLY_TOO),
    }
    undriven: Mapping[str, str] = DECLARED["undriven"]
    faults: Mapping[str, Fault] = FAULTS
    emulated: tuple[str, ...] = tuple(DECLARED["emulated"].values())

    def load(self, package: Path, dependencies: Path, device: str) -> Engine:
        """Load a release or a source tree into this process, graphs emulated on a CPU."""
        folders = [dependencies.with_name(name) for name in VLLM.dependencies]
        return load_vllm(package, folders, TrialConfig(device=device).ops(), device)

    def trial_of(self, runner: str, preset: str, kind: Kind, device: str) -> TrialConfig:
        """Return the settings of a leg: a page of the world is as large as a block."""
        return TrialConfig(
            runner=runner,
            preset=preset,
            device=device,
            page_size=BLOCK,
            full_slots=PAGES * BLOCK,
            swa_slots=PAGES * BLOCK,
            rows=8,
            buckets=(2, 4),
        )
