"""The sliding window: its width, its lists, and when slots that left it are freed."""

from paritybit.reference.allocator import Allocator, PageAllocation
from paritybit.reference.batch import Mode
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.expected import DECODE, PREFILL, seen
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme

FAMILY = "sliding window"

CHUNK = 4
"""Tokens per chunk, fewer than any window."""


class EvictsByChunk(Allocator):
    """An allocator that keeps the SWA pages of the last chunk instead of a window."""

    def evict(self, allocation: PageAllocation, tokens: int) -> int:
        """Free the SWA pages that are entirely before the last chunk."""
        held = len(allocation.swa_pages) * self.page_size
        return super().evict(allocation, max(tokens, held - CHUNK))


class LeavesMappingOfEvicted(Allocator):
    """An allocator that notifies workers of new slots but not of freed ones."""

    def evict(self, allocation: PageAllocation, tokens: int) -> int:
        """Free the SWA pages, and keep the mapping."""
        mapping = self.pool.full_to_swa_index_mapping
        before = mapping.clone()
        evicted = super().evict(allocation, tokens)
        mapping.copy_(before)
        return evicted


BUGS = (
    Bug(
        name="window_one_short",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 32087),
        mechanism=(
            "The window is stored as a radius, one less than its number of keys, but used "
            "as the number of keys. The oldest key is dropped, in eager execution and in "
            "the graph."
        ),
        expected=seen("dense_agreement", DECODE),
        model={"window": -1},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="window_inclusive",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("huggingface/transformers", 40163),
        mechanism=(
            "The left bound of the window is inclusive. Every query sees one key too "
            "many, in eager execution and in the graph."
        ),
        expected=seen("dense_agreement", PREFILL),
        model={"window": 1},
        modes=frozenset({Mode.EXTEND}),
    ),
    Bug(
        name="evicts_by_chunk",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("kvcache-ai/sglang", 75),
        mechanism=(
            "The number of tokens to free is computed from the chunk size instead of the "
            "window. Keys that the next query needs are freed too early."
        ),
        expected=seen("kv_parity", PREFILL),
        parts={Part.ALLOCATOR: EvictsByChunk},
        modes=frozenset({Mode.EXTEND}),
    ),
    Bug(
        name="mapping_of_evicted_slots",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 42276),
        mechanism=(
            "The scheduler frees slots that left the window, but the worker only hears of "
            "new slots. Its table keeps naming SWA slots that other requests now own."
        ),
        expected=seen("slot_ownership", PREFILL),
        parts={Part.ALLOCATOR: LeavesMappingOfEvicted},
        modes=frozenset({Mode.EXTEND}),
    ),
)
