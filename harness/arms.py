"""The arms of one trial: the eager world, the graph world, and the subject's twin.

The twin is the same subject over the same pool, captured once and given its
just-captured bytes back before each use: it has no history.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.trial import DTYPES, SUBJECT_LOGGER, TWIN_LOGGER, Trial
from harness.world import World
from reference.batch import ForwardBatch
from reference.config import PRESETS
from reference.eager import EagerDecoder
from reference.model import Model
from reference.pool import HybridKVPool
from subjects.buffers import tail_view
from subjects.contracts import Policy, contract
from subjects.decode import Replay
from subjects.engine import Engine, Forward
from subjects.graphs import Graph
from subjects.pool import LocState

KEPT_TAIL = 0
"""What kept tails hold in both runs of a comparison: equal for all padded rows, and valid."""


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


class Watched:
    """A graph that counts the blocks the CUDA allocator hands out around its replays."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.output = graph.output
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


def allocations() -> int:
    """Return how many blocks the CUDA caching allocator has handed out so far."""
    if not torch.cuda.is_initialized():
        return 0
    stats = torch.cuda.memory.memory_stats_as_nested_dict()
    return int(stats["allocation"]["all"]["allocated"])


class CapturedEngine:
    """An engine with a record of how it was when its graphs had just been captured."""

    def __init__(
        self, trial: Trial, model: Model, pool: HybridKVPool, logger: logging.Logger
    ) -> None:
        self.engine = Engine(trial.ops(), model, pool, trial.subject(), trial.buckets, logger)
        self.runner = self.engine.runner
        self._state: LocState = self.engine.pool.state
        buffers = self.runner.static_buffers()
        self.facts = {name: BufferFacts.of(buffer) for name, buffer in buffers.items()}
        self.engine.pool.invalidate_loc_cache()
        self.translated_dtype = self.engine.pool.translate_loc_from_full_to_swa(
            torch.zeros(1, dtype=torch.int64, device=model.device)
        ).dtype
        self.engine.pool.state = self._state
        self.outputs = {bs: BufferFacts.of(g.output) for bs, g in self.runner.graphs.items()}
        self._captured = [
            (alike, [buffer.clone() for buffer in alike]) for alike in grouped(buffers.values())
        ]
        self._kept = [
            row for row in contract(trial.runner, trial.era) if row.policy is not Policy.RESET
        ]

    def watch_allocations(self) -> None:
        """Count the allocator's blocks around every replay from now on."""
        self.runner.graphs = {bs: Watched(graph) for bs, graph in self.runner.graphs.items()}

    def allocated(self, replay: Replay | None) -> int:
        """Return how many blocks the CUDA allocator handed out around `replay`."""
        graph = None if replay is None else self.runner.graphs[replay.bs]
        return graph.allocated if isinstance(graph, Watched) else 0

    def recapture(self) -> None:
        """Give every static buffer, and the Python state, what they held after capture."""
        for buffers, captured in self._captured:
            torch._foreach_copy_(buffers, captured)
        self.engine.pool.state = self._state
        self.runner.inputs.conversions.clear()
        self.runner.metadata.conversions.clear()

    def level_kept_tails(self, batch: ForwardBatch | None) -> None:
        """Set the tails that the right contract keeps to equal bytes, as it allows."""
        live = 0 if batch is None else batch.raw_bs
        bucket = self.runner.bucket(live)
        if bucket is not None and bucket != live:
            for row in self._kept:
                tail_view(row, self.runner.inputs.buffers[row.name], live, bucket).fill_(KEPT_TAIL)

    def forward(self, batch: ForwardBatch | None) -> Forward:
        """Run one forward with kept tails level."""
        self.level_kept_tails(batch)
        return self.engine.forward(batch)


class Arms:
    """Everything that plays one trial, reset to a seed before each schedule."""

    def __init__(self, trial: Trial) -> None:
        torch.set_num_threads(1)
        config = PRESETS[trial.preset].tiny
        dtype, device = DTYPES[trial.dtype], torch.device(trial.device)
        self.trial = trial
        self.config = config
        self.model = Model(config, dtype, device)
        self.eager_pool = HybridKVPool(config, trial.sizes, dtype, device)
        self.graph_pool = HybridKVPool(config, trial.sizes, dtype, device)
        self.decoder = EagerDecoder(trial.ops(), self.model, self.eager_pool)
        self.subject = CapturedEngine(trial, self.model, self.graph_pool, SUBJECT_LOGGER)
        self.subject.watch_allocations()
        self.twin = CapturedEngine(trial, self.model, self.graph_pool, TWIN_LOGGER)
        widest = max(trial.buckets)
        self.eager = World(config, self.eager_pool, widest)
        self.graph = World(config, self.graph_pool, widest, self.subject.engine.allocator_changed)

        self.compared = torch.ones_like(self.eager_pool.storage, dtype=torch.bool)
        for arena in self.eager_pool.arenas_of(self.compared).values():
            arena[:, :, 0] = False  # The reserved slot is compared nowhere.

    def reset(self, seed: int) -> None:
        """Make both worlds equal, byte for byte, and the subject just captured."""
        self.eager.reset(seed)
        self.graph.reset(seed)
        self.subject.recapture()
