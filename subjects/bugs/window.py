"""The sliding window: how far it reaches, which lists say so, and when what left it is freed."""

import torch
from torch import Tensor

from reference.allocator import Allocator, PageAllocation
from reference.batch import Mode
from reference.config import Kind
from subjects.access import ListedKV
from subjects.bugs.bug import Bug, pull
from subjects.key_lists import KeyLists, Keys
from subjects.parts import Part
from subjects.toggles import LocationScheme

FAMILY = "sliding window"

SPLIT = 4
"""Keys of one split of a decode's attention."""


class MergesSplitsBeyondTheWindow(ListedKV):
    """KV access whose attention is split over the keys, and merged.

    The last split's partial result lies in a scratch, which the layers share. The first stage
    runs the splits of the window; the merge counts those of all keys.
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
    """Return over how many splits the keys of each token lie, int32 [T]."""
    return (keys.end - keys.begin + SPLIT - 1) // SPLIT


class AttendsByFullLists(ListedKV):
    """KV access that was given no lists for SWA layers: the end of the full ones has to do."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend, on every layer, to full slots."""
        full = self.lists.full
        begin = torch.maximum(full.begin, full.end - self.model.config.window)
        self.lists = KeyLists(full, Keys(begin, full.end, full.slots), self.lists.mask)
        return super().attend(layer, query, key, value)


class EvictsOneTooMany(Allocator):
    """An allocator that counts the token which a query is about to write among those gone by."""

    def evict(self, allocation: PageAllocation, tokens: int) -> int:
        """Free the SWA pages that lie within one token more."""
        return super().evict(allocation, tokens + (tokens > 0))


BUGS = (
    Bug(
        name="window_one_short",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 32087),
        mechanism=(
            "The window is kept as a radius, one less than its keys, and is used as their count:"
            " the oldest key drops out, eagerly and in the graph alike."
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
            "The left bound of the window is inclusive: every query sees one key too many,"
            " eagerly and in the graph alike."
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
            "Attention over split keys: the first stage stops at the window, the merge goes over"
            " the splits of all keys, and adds a scratch that nobody wrote for this layer."
        ),
        parts={Part.ACCESS: MergesSplitsBeyondTheWindow},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="window_lists_missing",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 29858),
        mechanism=(
            "One path of four builds no lists of the window: its SWA layers take the end of the"
            " full lists, whose slots are another sub-pool's, and a larger one's."
        ),
        parts={Part.ACCESS: AttendsByFullLists},
        modes=frozenset({Mode.DRAFT_EXTEND}),
    ),
    Bug(
        name="evicts_one_too_many",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("kvcache-ai/sglang", 75),
        mechanism=(
            "What left the window is counted to one token too far: the oldest key that the next"
            " query sees is freed before it."
        ),
        parts={Part.ALLOCATOR: EvictsOneTooMany},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
)
