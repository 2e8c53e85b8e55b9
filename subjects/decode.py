"""The decode runner: one graph per bucket, replayed over static inputs.

Follows the engine's decode graph runner: populate, write the attention metadata,
replay, slice the live rows off the static output.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.batch import ForwardBatch, Mode
from reference.model import Model, TokenInputs
from reference.ops import Ops
from subjects.access import ListedKV
from subjects.behaviour import Behaviour, Era
from subjects.buffers import BufferPool, StaticInputs
from subjects.contracts import Contract
from subjects.graphs import CudaGraph, Graph, TapeGraph
from subjects.metadata import StaticMetadata
from subjects.pool import LocState, SubjectPool

WARM_UP_RUNS = 2


@dataclass(frozen=True)
class Replay:
    """One replay: how much of its bucket was live, and its static output [bs, vocab]."""

    bs: int
    raw_bs: int
    output: Tensor

    @property
    def padded(self) -> bool:
        """Whether any row is padding."""
        return self.bs != self.raw_bs


class DecodeRunner:
    """Decodes batches by replaying the graph of the smallest bucket that holds them."""

    def __init__(
        self,
        ops: Ops,
        model: Model,
        pool: SubjectPool,
        contract: Contract,
        behaviour: Behaviour,
        buckets: tuple[int, ...],
        buffers: BufferPool,
    ) -> None:
        self.ops = ops
        self.model = model
        self.pool = pool
        self.behaviour = behaviour
        self.buckets = tuple(sorted(buckets))
        self.inputs = StaticInputs(contract, self.buckets[-1], self.buckets[-1], buffers)
        self.metadata = StaticMetadata(model.config, self.buckets[-1], buffers)
        self.graphs: dict[int, Graph] = {}
        self.captured_states: list[LocState] = []
        self._capture_all()

    def bucket(self, raw_bs: int) -> int | None:
        """Return the smallest captured size that holds `raw_bs` rows, or None."""
        return next((bs for bs in self.buckets if bs >= raw_bs), None)

    def can_run(self, batch: ForwardBatch) -> bool:
        """Whether a captured graph can run this batch."""
        return batch.mode is Mode.DECODE and self.bucket(batch.raw_bs) is not None

    def replay(self, batch: ForwardBatch | None, least_bs: int = 0) -> Replay:
        """Populate, plan, replay. `None` is an idle step: every row is padding.

        The bucket is the smallest that holds the batch and `least_bs` rows. Raises
        ValueError if none does.
        """
        raw_bs = 0 if batch is None else batch.raw_bs
        bs = self.bucket(max(raw_bs, least_bs))
        if bs is None:
            raise ValueError(f"no captured size holds {raw_bs} rows; captured: {self.buckets}")
        self.inputs.populate(self._heads(batch, bs), padded=bs != raw_bs)
        self._plan(bs)
        graph = self.graphs[bs]
        graph.replay()
        return Replay(bs, raw_bs, graph.output)

    def static_buffers(self) -> Mapping[str, Tensor]:
        """Return every static buffer, inputs and metadata, by name."""
        return {**self.inputs.buffers, **self.metadata.buffers}

    def _heads(self, batch: ForwardBatch | None, bs: int) -> dict[str, Tensor]:
        """Return the live values of each static input, by name."""
        device = self.model.device
        heads = {"global_num_tokens": torch.full((1,), bs, dtype=torch.int32, device=device)}
        if batch is None:
            heads["num_token_non_padded"] = torch.zeros(1, dtype=torch.int32, device=device)
            return heads
        if "out_cache_loc_swa" in self.inputs.buffers:
            heads["out_cache_loc_swa"] = self.pool.translate_loc_from_full_to_swa(
                batch.out_cache_loc
            )
        for name in self.inputs.buffers.keys() - heads.keys():
            heads[name] = getattr(batch, name)
        return heads

    def _plan(self, bs: int) -> None:
        """Write the attention metadata of the populated rows."""
        self.metadata.write(
            self.inputs.view("req_pool_indices", bs, bs),
            self.inputs.view("seq_lens", bs, bs),
            self.inputs.view("seq_lens_cpu", bs, bs),
            self.pool,
            self.behaviour.invalidation,
        )

    def _capture_all(self) -> None:
        """Capture every bucket, largest first, all in one memory pool."""
        on_cuda = self.model.device.type == "cuda"
        memory_pool = torch.cuda.graph_pool_handle() if on_cuda else None
        for bs in reversed(self.buckets):
            self._plan(bs)
            if self.behaviour.era is Era.PRESET:
                self.pool.set_swa_loc(self.inputs.view("out_cache_loc_swa", bs, bs))

            def run_once(bs: int = bs) -> Tensor:
                if self.behaviour.invalidation.run_once:
                    self.pool.invalidate_loc_cache()
                return self._forward(bs)

            for _ in range(WARM_UP_RUNS):
                run_once()
            if on_cuda:
                torch.cuda.synchronize()
                self.graphs[bs] = CudaGraph(run_once, self.ops, memory_pool)
            else:
                self.graphs[bs] = TapeGraph(run_once, self.ops)
            # What the capture found in the memo must go stale, not be freed under the graph.
            self.captured_states.append(self.pool.state)

    def _forward(self, bs: int) -> Tensor:
        """Run the captured function over the static buffers of bucket `bs`: logits [bs, vocab]."""

        def view(name: str) -> Tensor:
            return self.inputs.view(name, bs, bs)

        tokens = TokenInputs(
            input_ids=view("input_ids"),
            positions=view("positions"),
            mrope_positions=view("mrope_positions"),
            track_indices=view("mamba_track_indices"),
            track_mask=view("mamba_track_mask"),
            encoder_lens=view("encoder_lens"),
            live_tokens=view("num_token_non_padded"),
            token_count=view("global_num_tokens"),
        )
        access = ListedKV(
            self.ops, self.model, self.pool, view("out_cache_loc"), self.metadata.lists(bs)
        )
        return self.model.forward(self.ops, tokens, access)
