"""Padded rows and dummy runs: stale values, values that are treated as real, wrong arithmetic."""

import torch
from paritybit.reference.allocator import PageAllocator
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.ops import ListedKeys, Ops
from paritybit.reference.pool import Tables
from paritybit.subjects.bugs.bug import DRAFTS, FULL_GRAPH, Bug, pull, seen
from paritybit.subjects.contracts import Policy
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

KEPT = {"policy": Policy.KEEP}


class UnwrittenRequestTable(Tables):
    def reset(self) -> None:
        super().reset()
        slots = self.full_to_swa_index_mapping.shape[0] - 2
        columns = torch.arange(self.req_to_token.shape[1], device=self.req_to_token.device)
        self.req_to_token[0] = columns % slots + 1


class DummyRunKeepsSlots(GraphRunner):
    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        slots = self.inputs.buffers["out_cache_loc"]
        before = slots.clone()
        super().populate(batch, bucket, padded=padded)
        if batch is None:
            slots.copy_(before)


class LoadsMaskedValues(Ops):
    def _attention(self, query: Tensor, cache: Tensor, keys: ListedKeys) -> Tensor:
        mixed = super()._attention(query, cache, keys)
        place = keys.begin[:, None] + torch.arange(keys.max_keys, device=query.device)
        listed = place < keys.end[:, None]
        values = cache[1][keys.slots[place.clamp(0, keys.slots.shape[0] - 1)]]
        masked = torch.where(listed[:, :, None, None], 0.0, values) * 0.0
        grouped = mixed.view(len(mixed), cache.shape[2], -1, mixed.shape[2])
        return (grouped + masked.sum(1)[:, :, None]).view(mixed.shape)


class CountsStatesFromZero(PageAllocator):
    def clear(self, seed: int) -> None:
        super().clear(seed)
        self.free_states = [slot - 1 for slot in self.free_states]


BUGS = (
    Bug(
        name="positions_pad",
        thread=f"{pull(24401)}, and for draft-extend {pull(22958)}",
        mechanism=(
            "positions is not reset when the batch is padded. Padded rows apply the "
            "rotary positions of an earlier, fuller batch."
        ),
        expected=seen("live_inputs", *FULL_GRAPH, *DRAFTS, "eagle_draft_extend"),
        rows={"positions": KEPT},
    ),
    Bug(
        name="write_slots_pad",
        thread=pull(4569, "InternLM/lmdeploy"),
        mechanism=(
            "The slots of padded rows keep the values of an earlier, fuller batch, so "
            "padded rows write K and V into slots that requests own."
        ),
        expected=seen("kv_parity", "cpu_graph"),
        rows={"out_cache_loc": KEPT},
    ),
    Bug(
        name="request_table_unwritten",
        thread=pull(1782),
        mechanism=(
            "req_to_token is allocated without being zeroed. Padded rows follow its "
            "reserved row to whatever slots the memory contains."
        ),
        expected=seen("read_frame", "decode"),
        parts=(UnwrittenRequestTable,),
    ),
    Bug(
        name="dummy_slots_unmasked",
        thread="https://github.com/vllm-project/vllm-ascend/issues/10245",
        mechanism=(
            "A dummy batch between real ones does not mask its KV writes. It writes through "
            "the slots that the last batch left in the buffer, which other requests may own now."
        ),
        expected=seen("write_frame", "target_verify", "eagle_draft"),
        parts=(DummyRunKeepsSlots,),
    ),
    Bug(
        name="masked_values_loaded",
        thread=pull(57158, "vllm-project/vllm"),
        mechanism=(
            "Attention loads the values of masked keys, from the null slot or from "
            "whatever follows in the list, and multiplies them by zero. If such a value "
            "is NaN, it reaches live rows."
        ),
        expected=seen("padding_noninterference", "target_verify"),
        parts=(LoadsMaskedValues,),
    ),
    Bug(
        name="padding_clamped_to_a_slot",
        thread=pull(700, "lightseekorg/tokenspeed"),
        mechanism=(
            "The marker of a padded row is clamped into the range of valid slots. The "
            "lowest valid slot can belong to a request, and all padding is stored there."
        ),
        expected=seen("write_frame", "decode"),
        rows={"out_cache_loc": {"value": 1}},
    ),
    Bug(
        name="state_slot_zero_issued",
        thread=pull(17404),
        mechanism=(
            "The allocator hands out recurrent-state slots from 0, but captures and "
            "padded rows write to slot 0. A request that is served first hides the bug."
        ),
        expected=seen("slot_ownership", "decode"),
        parts=(CountsStatesFromZero,),
    ),
)
