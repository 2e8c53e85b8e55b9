"""The two sides of an engine's trial: our eager world, and the engine's runner over its own pool.

Our world schedules, and our eager reference says what is right, bit for bit. The engine's
side follows with its own allocator, request table, static buffers, index lists and graph.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from harness.engines.mirror import Mirror
from harness.lockstep.config import DTYPES, TrialConfig
from harness.lockstep.pair import DRAFT_SEED
from harness.lockstep.scheduler import Request, Scheduler
from reference.batch import Mode, Span
from reference.config import PRESETS, Role, draft_config
from reference.eager import EagerDecoder
from reference.model import Model
from reference.pool import KVPools
from subjects.engines.sglang import graphs
from subjects.engines.sglang.decode import DecodeRunner, ReleasedRunner
from subjects.engines.sglang.host import Host, server_arguments
from subjects.engines.sglang.loading import Engine
from subjects.engines.sglang.pool import ReleasedPool


class DecodingWorld(Scheduler):
    """A world without cross attention, which the engine's windowed backends refuse.

    Without `tracks`, no recurrent state is tracked.
    """

    tracks = True

    def held_span(self, request: Request, begin: int, end: int) -> Span:
        """Return tokens of `request` as a span that the engine can run."""
        span = super().held_span(request, begin, end)
        return replace(span, encoder_len=0, tracked=span.tracked and self.tracks)


def load(package: Path, dependencies: Path, device: str) -> Engine:
    """Load an engine into this process, graphs emulated and Triton interpreted without a GPU."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        graphs.emulate(TrialConfig(device=device).ops())
    graphs.count_replays()
    return Engine(package, dependencies, device)


class EngineArms:
    """One trial's model on both sides. `own_kernels` keeps the engine's Triton attention.

    It is an engine of its own unless it `shares` static buffers with those built before it.
    """

    def __init__(
        self,
        engine: Engine,
        trial: TrialConfig,
        runner: type[ReleasedRunner] = DecodeRunner,
        *,
        own_kernels: bool = False,
        shares: bool = False,
    ) -> None:
        torch.set_num_threads(1)
        config = PRESETS[trial.preset].tiny
        draft = draft_config(config)
        dtype, device = DTYPES[trial.dtype], torch.device(trial.device)
        ops = trial.ops()
        self.trial = trial
        self.config = config
        self.model = Model(config, dtype, device)
        pools = KVPools(config, draft, trial.sizes, dtype, device)
        self.pool = pools[Role.TARGET]
        self.eager = EagerDecoder(ops, self.model, Model(draft, dtype, device, DRAFT_SEED), pools)
        self.world = DecodingWorld(config, pools, max(trial.buckets), frozenset({Mode.DECODE}))
        asked: set[str] = set()
        settings = server_arguments(trial.buckets, trial.token_buckets, trial.page_size, asked)
        self.host = Host(engine, settings, trial.device, asked)
        if not shares:
            self.host.forget_shared_buffers()
        self.sglang = ReleasedPool(engine, config, trial.sizes, dtype, trial.device)
        self.sglang.reset(0)
        with stored_dtypes(self.sglang) as self.captured_dtypes:
            self.runner = runner(self.host, self.model, self.sglang, ops, own_kernels=own_kernels)
        self.world.tracks = runner.graphs
        self.mirror = Mirror(self.world, self.sglang)
        self._captured = {name: each.clone() for name, each in self.runner.statics().items()}

    def reset(self, seed: int) -> None:
        """Start both sides again, the runner as it was just captured."""
        self.world.reset(seed)
        self.mirror.reset(seed)
        self.recapture()

    def recapture(self) -> None:
        """Give every static buffer what it held when the graphs had just been captured."""
        self.restore(self._captured)

    def restore(self, values: dict[str, Tensor]) -> None:
        """Give static buffers their earlier values."""
        for name, each in self.runner.statics().items():
            if name in values:
                each.copy_(values[name])


@contextmanager
def stored_dtypes(pool: ReleasedPool) -> Iterator[set[torch.dtype]]:
    """Collect the dtypes of the locations that the SWA sub-pool's store is given."""
    swa, found = pool.kv.swa_kv_pool, set[torch.dtype]()
    store = swa.set_kv_buffer

    def watched(layer: object, loc: object, *arguments: object, **named: object) -> None:
        parts = [loc] if isinstance(loc, Tensor) else list(vars(loc).values())
        found.update(part.dtype for part in parts if isinstance(part, Tensor))
        store(layer, loc, *arguments, **named)

    swa.set_kv_buffer = watched
    try:
        yield found
    finally:
        swa.set_kv_buffer = store
