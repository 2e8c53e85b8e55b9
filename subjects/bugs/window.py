"""The sliding window: its width, its lists, and when slots that left it are freed."""

import torch
from paritybit.reference.allocator import Allocator, PageAllocation
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind
from paritybit.subjects.access import ListedKV
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import KeyLists, Keys
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "sliding window"

SPLIT = 4
"""Keys per split of a decode's attention."""

CHUNK = 4
"""Tokens per chunk, fewer than any window."""


class MergesSplitsBeyondTheWindow(ListedKV):
    """KV access whose attention is split over keys, and then merged.

    The last split's partial result is in scratch memory that the layers share. The first stage runs
    the window's splits, but the merge counts the splits of all keys.
    """

    scratch: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend, and merge the partial results."""
        mixed = super().attend(layer, query, key, value)
        config = self.model.config
        if self.scratch is None:
            widest = max(config.full.head_dim, config.swa.head_dim)
            self.scratch = mixed.new_empty((*mixed.shape[:2], widest))
        scratch = self.scratch.view(-1)[: mixed.numel()].view(mixed.shape)
        if config.layers[layer] is Kind.FULL:
            scratch.copy_(mixed)
            return mixed
        merged = splits(self.lists.full) > splits(self.lists.swa)
        return torch.where(merged[:, None, None], (mixed + scratch) / 2, mixed)


def splits(keys: Keys) -> Tensor:
    """Return the number of splits of each token's keys, int32 [T]."""
    return (keys.end - keys.begin + SPLIT - 1) // SPLIT


class AttendsByFullLists(ListedKV):
    """KV access without SWA lists: SWA layers use the end of the full lists."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to full slots on every layer."""
        full = self.lists.full
        begin = torch.maximum(full.begin, full.end - self.model.config.window)
        self.lists = KeyLists(full, Keys(begin, full.end, full.slots), self.lists.mask)
        return super().attend(layer, query, key, value)


class EvictsByChunk(Allocator):
    """An allocator that keeps the SWA pages of the last chunk instead of a window."""

    def evict(self, allocation: PageAllocation, tokens: int) -> int:
        """Free the SWA pages that are entirely before the last chunk."""
        held = len(allocation.swa_pages) * self.page_size
        return super().evict(allocation, max(tokens, held - CHUNK))


class LeavesMappingOfFreed(Allocator):
    """An allocator that keeps the SWA mapping of freed full slots."""

    def truncate(self, allocation: PageAllocation, tokens: int) -> None:
        """Free the pages, and keep the mapping."""
        mapping = self.pool.full_to_swa_index_mapping
        before = mapping.clone()
        super().truncate(allocation, tokens)
        mapping.copy_(before)


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
        model={"window": 1},
        modes=frozenset({Mode.EXTEND}),
    ),
    Bug(
        name="merge_beyond_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 47188),
        mechanism=(
            "In attention over split keys, the first stage stops at the window but the "
            "merge covers the splits of all keys. It adds scratch memory that this layer "
            "never wrote."
        ),
        parts={Part.ACCESS: MergesSplitsBeyondTheWindow},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
        at_capture=True,
    ),
    Bug(
        name="window_lists_missing",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 29858),
        mechanism=(
            "One of four code paths builds no window lists. Its SWA layers read the end "
            "of the full lists, whose slot numbers belong to another, larger sub-pool."
        ),
        parts={Part.ACCESS: AttendsByFullLists},
        modes=frozenset({Mode.DRAFT_EXTEND}),
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
        parts={Part.ALLOCATOR: EvictsByChunk},
        modes=frozenset({Mode.EXTEND}),
    ),
    Bug(
        name="mapping_of_freed_slots",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 25805),
        mechanism=(
            "A freed full slot keeps its entry in the SWA mapping. When a request takes "
            "that slot without an SWA slot and later frees it, it frees another request's "
            "SWA slot."
        ),
        parts={Part.ALLOCATOR: LeavesMappingOfFreed},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
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
        parts={Part.ALLOCATOR: LeavesMappingOfEvicted},
        modes=frozenset({Mode.EXTEND}),
    ),
)
