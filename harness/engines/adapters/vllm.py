"""vLLM on trial: loaded once into this process, its model runner built for each pair."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.checks.play import Lockstep
from harness.engines.adapters.adapter import PairsByEngines, world_of
from harness.engines.adapters.packages import VLLM
from harness.engines.adapters.vllm_faults import FAULTS
from harness.engines.faults import Fault
from harness.engines.playlist import Kind, Runner
from harness.lockstep.config import TrialConfig
from harness.lockstep.pair import Engines, Pair
from reference.batch import Mode
from reference.config import Role
from subjects.engines.shared.engine import OWN_EAGER, OWN_KERNELS
from subjects.engines.shared.loading import Engine
from subjects.engines.vllm.drafter import DraftingRunner
from subjects.engines.vllm.engine import DraftingEngine, VllmEngine
from subjects.engines.vllm.loading import load_vllm
from subjects.engines.vllm.pieces import BreakableRunner, PiecewiseRunner
from subjects.engines.vllm.requests import VllmRequests
from subjects.engines.vllm.runner import Sizes, VllmRunner
from subjects.engines.vllm.settings import BLOCK, DECLARED

PAGES = 24
"""Pages of either sub-pool of the world: those of the longest requests, one a row."""


@dataclass(frozen=True)
class Built:
    """How a runner is built: the mode of its batches, our classes of it, and of its engine."""

    mode: Mode
    runner: type[VllmRunner] = VllmRunner
    engine: type[VllmEngine] = VllmEngine


BUILT = {
    "decode": Built(Mode.DECODE),
    "target_verify": Built(Mode.TARGET_VERIFY),
    "piecewise": Built(Mode.EXTEND, PiecewiseRunner),
    "breakable": Built(Mode.EXTEND, BreakableRunner),
    "eagle_draft": Built(Mode.DRAFT, DraftingRunner, DraftingEngine),
    "eagle_draft_extend": Built(Mode.DRAFT_EXTEND, DraftingRunner, DraftingEngine),
}
"""How each runner is built, by name."""


@dataclass
class VllmEngines:
    """Builds the engine's runner and a fresh one beside it, over the same KV and requests.

    With `eagerly` or `own_kernels` it is its own fresh one.
    """

    engine: Engine
    asked: set[str]
    own_kernels: bool = False
    eagerly: bool = False

    def __call__(self, pair: Pair) -> Engines:
        """Build both over the graph world of a pair."""
        trial, built = pair.trial, BUILT[pair.trial.runner]
        buckets = trial.token_buckets if built.runner.pieces else trial.buckets
        # The world's pages are counted by sub-pool; the engine has one pool of blocks for both.
        sizes = Sizes(() if self.eagerly else buckets, trial.rows, 1 + 2 * PAGES)
        made_of = pair.models, built.mode, trial.ops(), sizes, self.asked
        runner = built.runner(self.engine, *made_of, own_kernels=self.own_kernels)
        world = world_of(pair, lags=Role.DRAFT in runner.roles)
        plan, layers, roles = runner.plan, runner.layers, runner.roles
        requests = VllmRequests(self.engine, world, plan, layers, roles)
        missing = OWN_EAGER if self.eagerly else OWN_KERNELS if self.own_kernels else {}
        subject = built.engine(trial.runner, built.mode, runner, requests, missing)
        if missing:
            return subject, subject
        fresh = built.engine(trial.runner, built.mode, runner.fresh(), requests, missing)
        return subject, fresh


class VllmAdapter(PairsByEngines):
    """The adapter of vLLM: see `Adapter`."""

    name = VLLM.name
    builds = VllmEngines
    runners: Mapping[str, Runner] = {
        "decode": Runner(
            "CudaGraphManager",
            (Kind.REPLAYED, Kind.OWN_EAGER, Kind.OWN_KERNELS),
            ("gpt_oss", "gemma3"),
        ),
        "target_verify": Runner(
            "num_speculative_steps", (Kind.REPLAYED, Kind.OWN_EAGER), ("gpt_oss",)
        ),
        "piecewise": Runner("PIECEWISE", (Kind.REPLAYED,), ("gpt_oss",)),
        "breakable": Runner("breakable", (Kind.REPLAYED,), ("gpt_oss",)),
        "eagle_draft": Runner("EagleSpeculator", (Kind.REPLAYED, Kind.OWN_EAGER), ("gpt_oss",)),
        "eagle_draft_extend": Runner(
            "prefill_cudagraph_manager", (Kind.REPLAYED, Kind.OWN_EAGER), ("gpt_oss",)
        ),
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

    def lockstep(
        self, engine: Engine, trial: TrialConfig, asked: set[str]
    ) -> tuple[Lockstep, str | None]:
        """Return a pair with the runner, of which there is nothing to note."""
        return Lockstep(trial, engines=VllmEngines(engine, asked)), None

    def sharing(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep | None:
        """Return None: a model runner of the engine shares its static buffers with no other."""
        return None

    def without_encoder(self, engine: Engine, trial: TrialConfig) -> str | None:
        """Return why there are no encoder lengths."""
        return "a runner of decoders has none"
