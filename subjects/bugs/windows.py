"""Keys outside the window, and slots that left it."""

from paritybit.reference.allocator import PageAllocation, PageAllocator
from paritybit.subjects.bugs.bug import PREFILL, Bug, pull, seen

CHUNK = 4
"""Tokens per chunk, fewer than any window."""


class EvictsByChunk(PageAllocator):
    def evict(self, allocation: PageAllocation, tokens: int) -> None:
        held = len(allocation.swa_pages) * self.page_size
        super().evict(allocation, max(tokens, held - CHUNK))


class LeavesMappingOfEvicted(PageAllocator):
    def evict(self, allocation: PageAllocation, tokens: int) -> None:
        mapping = self.pool.full_to_swa_index_mapping
        before = mapping.clone()
        super().evict(allocation, tokens)
        mapping.copy_(before)


BUGS = (
    Bug(
        name="window_one_short",
        thread=pull(32087),
        mechanism=(
            "The window is stored as a radius, one less than its number of keys, but used "
            "as the number of keys. The oldest key is dropped, in eager execution and in "
            "the graph."
        ),
        expected=seen("dense_agreement", "decode", *PREFILL),
        model={"window": -1},
    ),
    Bug(
        name="evicts_by_chunk",
        thread=pull(75, "kvcache-ai/sglang"),
        mechanism=(
            "The number of tokens to free is computed from the chunk size instead of the "
            "window. Keys that the next query needs are freed too early."
        ),
        expected=seen("kv_parity", *PREFILL),
        parts=(EvictsByChunk,),
    ),
    Bug(
        name="mapping_of_evicted_slots",
        thread=pull(42276, "vllm-project/vllm"),
        mechanism=(
            "The scheduler frees slots that left the window, but the worker only hears of "
            "new slots. Its table keeps naming SWA slots that other requests now own."
        ),
        expected=seen("slot_ownership", *PREFILL),
        parts=(LeavesMappingOfEvicted,),
    ),
)
