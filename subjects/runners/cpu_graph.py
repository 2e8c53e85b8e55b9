"""The CPU graph runner: decode by one compiled function per captured size, without recorded ops.

Only the function's inputs are under test, not the compiler. A batch of a captured size is passed as
it is. Any other batch is padded through static inputs. Each forward makes fresh attention metadata,
and the pool translates locations, so there is no `swa_loc`.
"""

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output, TokenInputs
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import SEQ_LEN_FILL_VALUE, Axis, keep, reset
from paritybit.subjects.key_lists import Queries, keys_of, list_keys, translated
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.states import decode_paths
from torch import Tensor

from paritybit.compat import override


class CpuGraphRunner(GraphRunner):
    """Compiled decode on a CPU, padded to the next captured batch size."""

    name = "cpu_graph"
    mode = Mode.DECODE
    captures = False
    static_metadata = False
    shares_buffers = False
    rows = (
        keep("input_ids", Axis.TOKEN, torch.int64),
        keep("positions", Axis.TOKEN, torch.int64),
        reset("seq_lens", Axis.REQUEST, torch.int64, SEQ_LEN_FILL_VALUE),
        reset("out_cache_loc", Axis.TOKEN, torch.int64),
        reset("req_pool_indices", Axis.REQUEST, torch.int64),
    )

    @override
    def keys(self, bucket: int) -> KeyLists:
        return self.listed

    def capture_all(self) -> None:
        """Run every size once, as compilation does."""
        self.ran: dict[int, list[str]] = {}
        for bucket in reversed(self.buckets):
            self.forward(bucket)

    @override
    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        if padded:
            super().populate(batch, bucket, padded=padded)

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Run the compiled function over the live tensors, or over the static ones if padded.

        `captured` has no effect, because nothing is captured.
        """
        inputs = {name: self.view(name, bucket) for name in self.inputs.buffers}
        if batch is not None and not self.padded(batch, bucket):
            inputs = self.live_values(batch, bucket)
        self.pool.set_swa_loc(None)
        rows, lengths = inputs["req_pool_indices"], inputs["seq_lens"]
        queries = Queries(rows, lengths, lengths.cpu(), bucket)
        lists = list_keys(queries, self.window, self.pool.pool.req_to_token)
        self.listed = keys_of(translated(lists, self.pool, self.toggles), 0, bucket)
        tokens = TokenInputs(
            input_ids=inputs["input_ids"],
            payload=self._payload(batch, bucket),
            positions=inputs["positions"],
            live_tokens=self.scalar(bucket),
        )
        access = ListedKV(self.target, self.pool, inputs["out_cache_loc"], self.listed)
        self.ops.log = self.ran[bucket] = []
        try:
            return self.target.forward(self.ops, tokens, access)
        finally:
            self.ops.log = None

    @override
    def forward(self, bucket: int) -> Output:
        return self.launch(None, bucket)

    @override
    def operations(self, bucket: int) -> list[str]:
        return self.ran[bucket]

    def _payload(self, batch: ForwardBatch | None, bucket: int) -> Tensor:
        """Return the payload of live rows with their states advanced, and zeros in padded rows."""
        payload = torch.zeros((bucket, self.target.config.hidden), device=self.target.device)
        if batch is not None:
            paths = decode_paths(batch.mamba_track_indices)
            payload[: batch.live_requests] = self.target.advance_states(
                self.ops, self.states, paths, batch.input_ids
            )
        return payload
