"""The engine's verify of draft trees: its decode runner, captured where a model is drafted for."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Kind
from paritybit.reference.model import Model
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.sglang.host.host import Host
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.model.trees import TreeBatch, tree_keys
from paritybit.subjects.engines.sglang.padded import MASK
from paritybit.subjects.engines.sglang.runners.decode import (
    BACKEND_LOCATIONS,
    DecodeRunner,
    RowSlots,
)
from torch import Tensor

DRAFTS = SPECULATION.draft_tokens

SETTINGS = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": SPECULATION.steps,
    "speculative_eagle_topk": SPECULATION.topk,
    "speculative_num_draft_tokens": DRAFTS,
    "max_speculative_num_draft_tokens": DRAFTS,
}
"""How far the engine is told to speculate."""


class TargetVerifyRunner(DecodeRunner):
    """The runner that replays one graph for a batch of trees of drafts, k tokens of each request.

    What is ours: the trees and their mask, a tensor apart that the engine copies (a server may
    build it in the engine's own buffer); which drafts are accepted; and where their KV then
    lies (see `Mirror`). Such an engine keeps recurrent states elsewhere than in this runner's
    static inputs, so that no request's is tracked.
    """

    name = "target_verify"
    mode = Mode.TARGET_VERIFY
    tokens_per_request = DRAFTS

    def __init__(
        self, host: Host, model: Model, pool: SglangPool, ops: Ops, *, own_kernels: bool
    ) -> None:
        for name, value in SETTINGS.items():
            host.set(name, value)
        super().__init__(host, model, pool, ops, own_kernels=own_kernels)

    def declared(self) -> dict[str, Any]:
        """Return what makes the engine's decode runner capture a verify."""
        algorithms = self.host.engine.part("srt.speculative.spec_info:SpeculativeAlgorithm")
        return {
            "spec_algorithm": algorithms.EAGLE,
            "decode_num_tokens_per_bs": lambda **named: DRAFTS,
            "decode_num_tokens_per_req": lambda **named: DRAFTS,
        }

    def adds(self, batch: ForwardBatch) -> dict[str, Any]:
        """Return the mode and the trees of a batch to verify."""
        if batch.mode is not Mode.TARGET_VERIFY:
            return {}
        verify, full = self.modes.TARGET_VERIFY, self.hidden_modes.FULL
        kind = self.host.engine.part("srt.speculative.eagle_info:EagleVerifyInput")
        # What accepts drafts is never asked: what else it wants to be given is nothing.
        wanted = {one.name: None for one in fields(kind) if one.default is MISSING}
        values = {
            "draft_token": batch.input_ids,
            "custom_mask": batch.spec_info["custom_mask"],
            "positions": batch.positions,
            "spec_steps": SPECULATION.steps,
            "topk": SPECULATION.topk,
            "draft_token_num": DRAFTS,
            "capture_hidden_mode": full,
            "seq_lens_sum": int(batch.seq_lens_cpu.sum()),
            "seq_lens_cpu": batch.seq_lens_cpu,
        }
        trees = kind(**(wanted | values))
        return {
            "forward_mode": verify,
            "global_forward_mode": verify,
            "spec_info": trees,
            "capture_hidden_mode": full,
        }

    @property
    def mask(self) -> Tensor:
        """The static mask of the trees, as the backend holds it."""
        holder = getattr(self.backend, "verify_mask", None)
        found: Tensor = self.backend.cuda_graph_custom_mask if holder is None else holder.buffer
        return found

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads: the runner's and the backend's."""
        return {**super().statics(), MASK: self.mask}

    def given(self, batch: Any) -> Mapping[str, Tensor]:
        """Return what a batch brings, the mask of its trees too, in the static one's dtype."""
        return {**super().given(batch), MASK: batch.spec_info.custom_mask.to(self.mask.dtype)}

    def reads(self, batch: Any) -> RowSlots:
        """Return the slots that the last replay's lists give the tokens of its bucket's requests.

        The kernel is given K and V of the drafts, which are listed where they were stored: of a
        live token its own and those that the mask has above it. Of a padded one none is listed,
        for nothing reads what it stores.
        """
        statics, rows = self.statics(), self.bucket
        tokens = rows * DRAFTS
        full = statics["out_cache_loc"][:tokens]
        swa = next(
            (statics[name][:tokens] for name in SWA_LOCATIONS if name in statics),
            self.pool.translate(full),
        )
        return {
            kind: self._slots_read(kind, rows, stored.tolist())
            for kind, stored in ((Kind.FULL, full), (Kind.SWA, swa))
        }

    def _slots_read(self, kind: Kind, rows: int, stored: list[int]) -> list[list[int]]:
        config = self.model.weights.config
        listed = tree_keys(self._trees(kind, rows), rows * DRAFTS, config.max_context, BASE)
        bounds = zip(listed.begin.tolist(), listed.end.tolist(), strict=True)
        live = int(self.runner.raw_num_token)
        seen = [listed.slots[begin:end][listed.mask[begin:end]].tolist() for begin, end in bounds]
        return [
            [
                slot if slot < BASE else stored[slot - BASE]
                for slot in slots
                if slot < BASE or token < live
            ]
            for token, slots in enumerate(seen)
        ]

    def _trees(self, kind: Kind, rows: int) -> TreeBatch:
        """Return what the kernel is given of `rows` requests by the backend's static lists."""
        held, swa = self.backend, kind is Kind.SWA
        return TreeBatch(
            qo_indptr=held.qo_indptr[: rows + 1],
            kv_indptr=(held.window_kv_indptr if swa else held.kv_indptr)[: rows + 1],
            kv_indices=held.cuda_graph_window_kv_indices if swa else held.cuda_graph_kv_indices,
            mask=self.mask,
            mask_indptr=held.mask_indptr[: rows + 1],
            offsets=held.cuda_graph_window_kv_offsets if swa else None,
            drafts=DRAFTS,
            window=self.model.weights.config.window if swa else None,
        )


SWA_LOCATIONS = ("out_cache_loc_swa", BACKEND_LOCATIONS)
"""Static buffers that hold the SWA write locations, in engines that have one of them."""

BASE = 1 << 32
"""Beyond all slots: draft tokens are listed from here on before their slots are looked up."""
