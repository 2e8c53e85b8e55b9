"""vLLM on trial: loaded once into this process, its model runner built for each pair."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.checks.play import Lockstep
from harness.engines.adapters.adapter import PairsByEngines
from harness.engines.adapters.packages import VLLM
from harness.engines.adapters.vllm_faults import FAULTS
from harness.engines.faults import Fault
from harness.engines.playlist import Kind, Runner
from harness.lockstep.config import TrialConfig
from harness.lockstep.pair import Engines, Pair
from reference.batch import Mode
from reference.config import SPECULATION, Role
from subjects.engines.shared.engine import OWN_EAGER, OWN_KERNELS
from subjects.engines.shared.loading import Engine
from subjects.engines.vllm.drafter import DraftingRunner
from subjects.engines.vllm.drafting import UNSEEN, DraftingEngine, EagerDraftingEngine
from subjects.engines.vllm.engine import EagerVllmEngine, PiecewiseEngine, VllmEngine
from subjects.engines.vllm.loading import load_vllm
from subjects.engines.vllm.pieces import BreakableRunner, PiecewiseRunner
from subjects.engines.vllm.requests import Known, VllmRequests, World
from subjects.engines.vllm.runner import Sizes, VllmRunner
from subjects.engines.vllm.settings import BLOCK, DECLARED

MODES = {
    "decode": Mode.DECODE,
    "target_verify": Mode.TARGET_VERIFY,
    "piecewise": Mode.EXTEND,
    "breakable": Mode.EXTEND,
    "eagle_draft": Mode.DRAFT,
    "eagle_draft_extend": Mode.DRAFT_EXTEND,
}
"""The mode of the batches that each runner replays."""

PIECES = {"piecewise": PiecewiseRunner, "breakable": BreakableRunner}
"""The runners whose graphs are in pieces."""

DRAFTERS = (Mode.DRAFT, Mode.DRAFT_EXTEND)
"""The modes of those that the engine's drafter runs."""

PAGES = 24
"""Pages of either sub-pool of the world: those of the longest requests, one a row."""


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
        trial, mode = pair.trial, MODES[pair.trial.runner]
        drafts = 0 if mode in {Mode.DECODE, Mode.EXTEND} else SPECULATION.draft_tokens
        # The world's pages are counted by sub-pool; the engine has one pool of blocks for both.
        buckets, singly = () if self.eagerly else trial.buckets, mode is Mode.DRAFT
        sizes = Sizes(buckets, trial.rows, 1 + 2 * PAGES, drafts, singly=singly)
        if mode is Mode.EXTEND:
            return self._in_pieces(pair, replace(sizes, buckets=trial.token_buckets, pieces=True))
        if mode in DRAFTERS:
            return self._drafters(pair, sizes, mode)
        runner = VllmRunner(
            self.engine, pair.model, trial.ops(), sizes, self.asked, own_kernels=self.own_kernels
        )
        requests = VllmRequests(self.engine, world_of(pair), runner.plan, runner.layers)
        if self.eagerly:
            alone = EagerVllmEngine(trial.runner, mode, runner, requests, OWN_EAGER)
            return alone, alone
        missing = OWN_KERNELS if self.own_kernels else {}
        subject = VllmEngine(trial.runner, mode, runner, requests, missing)
        if self.own_kernels:
            return subject, subject
        return subject, VllmEngine(trial.runner, mode, runner.fresh(), requests, missing)

    def _in_pieces(self, pair: Pair, sizes: Sizes) -> Engines:
        """Build those with graphs in pieces."""
        name, ops = pair.trial.runner, pair.trial.ops()
        runner = PIECES[name](self.engine, pair.model, ops, sizes, self.asked)
        requests = VllmRequests(self.engine, world_of(pair), runner.plan, runner.layers)
        subject = PiecewiseEngine(name, Mode.EXTEND, runner, requests, {})
        return subject, PiecewiseEngine(name, Mode.EXTEND, runner.fresh(), requests, {})

    def _drafters(self, pair: Pair, sizes: Sizes, mode: Mode) -> Engines:
        ops, name = pair.trial.ops(), pair.trial.runner
        runner = DraftingRunner(self.engine, pair.models, mode, ops, sizes, self.asked)
        world = world_of(pair, lags=True)
        requests = VllmRequests(self.engine, world, runner.plan, runner.layers, tuple(Role))
        if self.eagerly:
            alone = EagerDraftingEngine(name, mode, runner, requests, OWN_EAGER)
            return alone, alone
        subject = DraftingEngine(name, mode, runner, requests, UNSEEN)
        return subject, DraftingEngine(name, mode, runner.fresh(), requests, UNSEEN)


def world_of(pair: Pair, *, lags: bool = False) -> World:
    """Return what the engine asks of a pair's graph world, which is made after the engine.

    With `lags` a draft model catches up when the schedule says so, as none of the engine's lags:
    blocks that it is yet to read stay, and those of tokens that it may run once more.
    """

    def running() -> dict[int, Known]:
        graph = pair.graph
        return {
            request.serial: Known(
                graph.owner(request),
                tuple(graph.tokens[request.token_row, : request.known].tolist()),
                max(request.drafted - SPECULATION.draft_tokens, 0) if lags else None,
            )
            for request in graph.running
            if request.allocation is not None
        }

    return World(
        pair.graph_pools,
        running,
        lambda: {request.serial for request in pair.graph.retracted},
        lambda: pair.graph.hidden_states,
    )


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
