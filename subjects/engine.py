"""The engine on trial: chooses a path for each forward, as a model runner does."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from reference.batch import ForwardBatch
from reference.eager import last_rows, live_inputs
from reference.model import Model
from reference.ops import Ops
from reference.pool import HybridKVPool
from subjects.access import ListedKV
from subjects.behaviour import Behaviour, Era
from subjects.buffers import BufferPool
from subjects.contracts import Contract
from subjects.decode import DecodeRunner, Replay
from subjects.metadata import extend_lists
from subjects.pool import SubjectPool

Runner = DecodeRunner

RUNNERS: dict[str, Callable[..., Runner]] = {"decode": DecodeRunner}
"""Every runner of this build, by name."""


@dataclass(frozen=True)
class Subject:
    """What is on trial: a runner, its contract and its behaviour."""

    runner: str
    contract: Contract
    behaviour: Behaviour


@dataclass(frozen=True)
class Forward:
    """The outcome of one forward: live logits [raw_bs, vocab], and the replay if there was one."""

    logits: Tensor
    replay: Replay | None


class Engine:
    """A subject over one pool, its graphs captured."""

    def __init__(
        self,
        ops: Ops,
        model: Model,
        pool: HybridKVPool,
        subject: Subject,
        buckets: tuple[int, ...],
        logger: logging.Logger,
    ) -> None:
        self.ops = ops
        self.model = model
        self.behaviour = subject.behaviour
        self.pool = SubjectPool(pool, ops, subject.behaviour.era, logger)
        self.runner = RUNNERS[subject.runner](
            ops,
            model,
            self.pool,
            subject.contract,
            subject.behaviour,
            buckets,
            BufferPool(model.device),
        )

    def forward(self, batch: ForwardBatch | None) -> Forward:
        """Run one forward by graph where one can, else eagerly. `None` is an idle step."""
        if self.behaviour.invalidation.entry:
            self.pool.invalidate_loc_cache()
        if batch is None or self.runner.can_run(batch):
            replay = self.runner.replay(batch)
            return Forward(replay.output[: replay.raw_bs], replay)
        return Forward(self._forward_eagerly(batch), None)

    def allocator_changed(self) -> None:
        """Follow a change of slot ownership, as the engine's allocator tells its pool."""
        if self.behaviour.invalidation.allocator:
            self.pool.invalidate_loc_cache()

    def _forward_eagerly(self, batch: ForwardBatch) -> Tensor:
        invalidation = self.behaviour.invalidation
        if invalidation.eager_forward:
            self.pool.invalidate_loc_cache()
        lists = extend_lists(batch, self.model.config, self.pool, invalidation)
        if self.behaviour.era is Era.PRESET:
            self.pool.set_swa_loc(self.pool.translate_loc_from_full_to_swa(batch.out_cache_loc))
        access = ListedKV(self.ops, self.model, self.pool, batch.out_cache_loc, lists)
        return self.model.forward(self.ops, live_inputs(batch), access, last_rows(batch))
