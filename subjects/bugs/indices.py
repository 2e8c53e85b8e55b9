"""Wrong indices: offsets that overflow 32 bits, and keys outside the window.

In a real pool, the offset of a high slot, in elements or bytes, needs more than 31 bits. The small
pool models the slots around the first such slot: half of its slots lie below it. A wrapped offset
is 2^32 too low and reaches other KV of the real pool. Here it maps to a slot of the small pool,
modulo its size.
"""

import torch
from paritybit.reference.allocator import Allocator, PageAllocation
from paritybit.reference.config import Kind
from paritybit.subjects.bugs.bug import PREFILL, Bug, pull, seen
from paritybit.subjects.pool import SubjectPool
from torch import Tensor

SIGNED_LIMIT = 2**31
"""The first offset that int32 cannot hold."""

PAGE_BYTES = 64 * 656
"""Bytes of a page of 64 tokens with their scales."""

CHUNK = 4
"""Tokens per chunk, fewer than any window."""


def reached(index: Tensor, stride: int, count: int) -> Tensor:
    """Return which of `count` slots, or pages, a kernel reaches that multiplies in 32 bits.

    `index` is the correct slot or page, and `stride` its factor. The result is int64.
    """
    first = max(0, SIGNED_LIMIT // stride - count // 2)
    offset = (index.to(torch.int32) + first) * stride  # Overflows.
    return ((offset // stride - first) % count).long()


class StoresPagesIn32Bits(SubjectPool):
    def location(self, kind: Kind, loc: Tensor) -> Tensor:
        slots, sizes = super().location(kind, loc), self.pool.sizes
        page = slots // sizes.page_size
        page = reached(page, PAGE_BYTES, sizes.slots(kind) // sizes.page_size)
        return (page * sizes.page_size + slots % sizes.page_size).to(slots.dtype)


class EvictsByChunk(Allocator):
    def evict(self, allocation: PageAllocation, tokens: int) -> int:
        held = len(allocation.swa_pages) * self.page_size
        return super().evict(allocation, max(tokens, held - CHUNK))


class LeavesMappingOfEvicted(Allocator):
    def evict(self, allocation: PageAllocation, tokens: int) -> int:
        mapping = self.pool.full_to_swa_index_mapping
        before = mapping.clone()
        evicted = super().evict(allocation, tokens)
        mapping.copy_(before)
        return evicted


BUGS = (
    Bug(
        name="page_store_int32",
        thread=pull(39948),
        mechanism=(
            "The store multiplies a page number by the bytes per page in 32 bits. Once "
            "the allocator hands out high pages, their KV goes to the wrong place."
        ),
        expected=seen("kv_parity", "decode", "cpu_graph"),
        parts=(StoresPagesIn32Bits,),
    ),
    Bug(
        name="window_one_short",
        thread=pull(32087),
        mechanism=(
            "The window is stored as a radius, one less than its number of keys, but used "
            "as the number of keys. The oldest key is dropped, in eager execution and in "
            "the graph."
        ),
        expected=seen("dense_agreement", "decode"),
        model={"window": -1},
    ),
    Bug(
        name="window_inclusive",
        thread=pull(40163, "huggingface/transformers"),
        mechanism=(
            "The left bound of the window is inclusive. Every query sees one key too "
            "many, in eager execution and in the graph."
        ),
        expected=seen("dense_agreement", *PREFILL),
        model={"window": 1},
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
