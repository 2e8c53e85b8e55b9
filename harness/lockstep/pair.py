"""The arms of one trial: the eager world, the graph world, and the subject's twin.

The twin is the same engine over the same pools, captured once and given its
just-captured bytes back before each use: it has no history, no runner of it.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.lockstep.config import DTYPES, FRESH_LOGGER, SUBJECT_LOGGER, TrialConfig
from harness.lockstep.scheduler import Scheduler, Work
from reference.config import PRESETS, Role, draft_config
from reference.eager import EagerDecoder
from reference.model import Model
from reference.pool import KVPools
from subjects.contracts import Policy
from subjects.engine import Engine, Forward, contract
from subjects.graphs.protocol import Graph
from subjects.runners import RUNNERS
from subjects.runners.base import GraphRunner, Replay

DRAFT_SEED = 1


@dataclass(frozen=True)
class BufferFacts:
    """What a graph has recorded about a static buffer."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    address: int

    @classmethod
    def of(cls, buffer: Tensor) -> "BufferFacts":
        """Return the facts of `buffer` as it is now."""
        return cls(buffer.shape, buffer.dtype, buffer.device, buffer.data_ptr())


class CountingGraph:
    """A graph that counts the blocks the CUDA allocator hands out around its replays."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.operations = graph.operations
        self.allocated = 0

    def replay(self) -> None:
        """Replay the graph and count."""
        before = allocations()
        self.graph.replay()
        self.allocated = allocations() - before


def grouped(buffers: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the buffers in groups of one dtype and device, which one call copies together."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    return list(groups.values())


def whole_storages(buffers: Iterable[Tensor]) -> list[Tensor]:
    """Return each storage under some buffers once, as a flat tensor: buffers may be shared."""
    found: dict[int, Tensor] = {}
    for buffer in buffers:
        flat = buffer.view(-1)
        known = found.get(buffer.data_ptr())
        if known is None or known.numel() < flat.numel():
            found[buffer.data_ptr()] = flat
    return list(found.values())


def allocations() -> int:
    """Return how many blocks the CUDA caching allocator has handed out so far."""
    if not torch.cuda.is_initialized():
        return 0
    stats = torch.cuda.memory.memory_stats_as_nested_dict()
    return int(stats["allocation"]["all"]["allocated"])


class SubjectFailedError(Exception):
    """The subject, or its twin, could not run a step."""


@contextmanager
def subject_runs() -> Iterator[None]:
    """Tell an error of what runs in here as the subject's."""
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        raise SubjectFailedError(str(error).splitlines()[0]) from error


class CapturedEngine:
    """An engine with a record of how it was when its graphs had just been captured."""

    def __init__(
        self,
        trial: TrialConfig,
        models: Mapping[Role, Model],
        pools: KVPools,
        logger: logging.Logger,
        witnessed: bool,
    ) -> None:
        self.ops = trial.ops()
        self.ops.calls = [] if witnessed else None
        self.engine = Engine(
            self.ops,
            models,
            pools,
            trial.subject(),
            trial.buckets,
            trial.token_buckets,
            logger,
        )
        self.ops.calls = None
        self.runners = self.engine.runners
        self._states = {role: pool.state for role, pool in self.engine.pools.items()}
        self.facts = {
            (runner.name, name): BufferFacts.of(buffer)
            for runner in self.runners.values()
            for name, buffer in runner.static_buffers().items()
        }
        self.translated_dtype = self._translated_dtype()
        self.outputs = {
            (runner.name, bucket, name): BufferFacts.of(each)
            for runner in self.runners.values()
            for bucket, captured in runner.captured.items()
            for name, each in captured.output.items()
        }
        buffers = whole_storages(
            each for runner in self.runners.values() for each in runner.static_buffers().values()
        )
        self._captured = [
            (alike, [buffer.clone() for buffer in alike]) for alike in grouped(buffers)
        ]
        self._kept = {
            runner.name: grouped(
                runner.inputs.buffers[row.name]
                for row in contract(RUNNERS[runner.name], trial.scheme)
                if row.policy is not Policy.RESET
            )
            for runner in self.runners.values()
        }

    def _translated_dtype(self) -> torch.dtype:
        """Return what the pool's own translation returns."""
        pool = self.engine.pools[Role.TARGET]
        pool.invalidate_loc_cache()
        loc = torch.zeros(1, dtype=torch.int64, device=pool.pool.device)
        dtype = pool.translate_loc_from_full_to_swa(loc).dtype
        pool.state = self._states[Role.TARGET]
        return dtype

    def watch_allocations(self) -> None:
        """Count the allocator's blocks around every graph's replay from now on."""
        for runner in self.runners.values():
            for captured in runner.captured.values():
                captured.segments = [CountingGraph(graph) for graph in captured.segments]

    def allocated(self, replay: Replay | None) -> int:
        """Return how many blocks the CUDA allocator handed out around the graphs of `replay`."""
        if replay is None:
            return 0
        graphs = self.runner_of(replay).graphs(replay.bucket)
        return sum(graph.allocated for graph in graphs if isinstance(graph, CountingGraph))

    def runner_of(self, replay: Replay) -> GraphRunner:
        """Return the runner that a replay is of."""
        return next(each for each in self.runners.values() if each.name == replay.runner)

    def recapture(self) -> None:
        """Give every static buffer, and the Python state, what they held after capture."""
        for buffers, captured in self._captured:
            torch._foreach_copy_(buffers, captured)
        for role, pool in self.engine.pools.items():
            pool.state = self._states[role]
        for runner in self.runners.values():
            runner.forget_conversions()

    def equalize_padding(self, work: Work) -> None:
        """Set what the right contract of the work's runner keeps to one value, as it allows.

        Kept tails are then equal for all padded rows, and valid, in both runs of a comparison.
        A mask is set, not cleared: padded rows must go on reading what their indices say.
        """
        runner = self.runners.get(work.mode)
        for buffers in self._kept[runner.name] if runner is not None else ():
            if buffers[0].dtype is torch.bool:
                for buffer in buffers:
                    buffer.fill_(value=True)
            else:
                torch._foreach_zero_(buffers)

    def forward(self, work: Work) -> Forward:
        """Run one forward with kept tails level."""
        self.equalize_padding(work)
        with subject_runs():
            return self.engine.forward(work.batch, work.mode)


class Pair:
    """Everything that plays one trial, reset to a seed before each schedule.

    `witnessed` graphs keep what each of their ops was given and gave. On a CPU all do: a tape
    holds it anyway, where a CUDA graph would reuse the memory.
    """

    def __init__(self, trial: TrialConfig, *, witnessed: bool = False) -> None:
        torch.set_num_threads(1)
        self.witnessed = witnessed or trial.device == "cpu"
        config = PRESETS[trial.preset].tiny
        dtype, device = DTYPES[trial.dtype], torch.device(trial.device)
        self.trial = trial
        self.config = config
        draft = draft_config(config)
        self.model = Model(config, dtype, device)
        self.draft = Model(draft, dtype, device, DRAFT_SEED)
        self.eager_pools = KVPools(config, draft, trial.sizes, dtype, device)
        self.graph_pools = KVPools(config, draft, trial.sizes, dtype, device)
        self.decoder = EagerDecoder(trial.ops(), self.model, self.draft, self.eager_pools)
        models = {Role.TARGET: self.model, Role.DRAFT: self.draft}
        self.subject = CapturedEngine(
            trial, models, self.graph_pools, SUBJECT_LOGGER, self.witnessed
        )
        self.subject.watch_allocations()
        self.fresh_engine = CapturedEngine(
            trial, models, self.graph_pools, FRESH_LOGGER, self.witnessed
        )
        widest = max(trial.buckets)
        changed = self.subject.engine.allocator_changed
        self.eager = Scheduler(config, self.eager_pools, widest, trial.modes)
        self.graph = Scheduler(config, self.graph_pools, widest, trial.modes, changed)

        self.compared = torch.ones_like(self.eager_pools.storage, dtype=torch.bool)
        for _, _, arena in self.eager_pools.arenas_of(self.compared):
            arena[:, :, 0] = False  # The reserved slot is compared nowhere.

    def reset(self, seed: int) -> None:
        """Make both worlds equal, byte for byte, and the subject just captured."""
        self.eager.reset(seed)
        self.graph.reset(seed)
        self.subject.recapture()
