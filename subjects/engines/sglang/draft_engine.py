"""A speculative runner of the engine as an engine under test."""

from collections.abc import Mapping
from functools import partial

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.reference.speculative import keep_candidates
from paritybit.subjects.engines.sglang.engine import SglangEngine
from paritybit.subjects.engines.sglang.padded import padded_rows
from paritybit.subjects.engines.sglang.runners.drafting import DraftingRunner
from paritybit.subjects.engines.shared.padded import PaddedInput
from paritybit.subjects.protocol import Forward, Replay
from torch import Tensor


class DraftingEngine(SglangEngine[DraftingRunner]):
    """A runner of drafts. Prefills and decodes of the target run eagerly, by the engine's code.

    So do drafts that catch up, where another runner is on trial. What requests were proposed
    is kept beside KV by this adapter: the engine has no such table.
    """

    eager_modes = frozenset({Mode.DRAFT_EXTEND})

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs that have a padded tail, by name."""
        return padded_rows(self.runner.statics(), max(self.runner.runner.capture_bs))

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward, of the runner's mode by replay. RuntimeError for an idle one."""
        rows, loc = self.placed_rows(batch)
        assert batch is not None
        runner = self.runner
        if mode is self.mode and runner.takes(batch):
            return self._replayed(batch, rows, loc)
        if mode is Mode.DRAFT_EXTEND:
            return Forward(runner.caught_up(batch, rows, loc), None)
        if mode not in {Mode.EXTEND, Mode.DECODE}:
            raise RuntimeError(f"the engine's {runner.name} has no graph for a batch of {mode}")
        given = runner.batch(
            batch, rows, loc, extend=mode is Mode.EXTEND, scheduled=self.mirror.scheduled
        )
        return Forward(self._eager(given), None)

    def _replayed(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Forward:
        output = self.counted(partial(self.runner.drafted, batch, rows, loc))
        if batch.mode.drafts:
            table = self.mirror.pools.state.draft_table
            keep_candidates(self.runner.ops, table, batch.req_pool_indices, output)
        bucket = self.runner.bucket
        return Forward(output, self._replay(batch, output, bucket))

    def _replay(self, batch: ForwardBatch, output: Output, bucket: int) -> Replay:
        reads, given = self._in_our_slots(self.runner.row_slots(batch)), self.runner.brought
        live = batch.live_requests
        return self.replay_of(bucket, live, live, output, reads=reads, given=given)
