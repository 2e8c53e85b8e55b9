"""The one seam in the engine's attention backend: the arithmetic of its kernels.

Which slots a token reads, where it writes, and when, stays the engine's; that is what it
hands to these functions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference.config import ModelConfig
from reference.model import most_keys
from reference.ops import Ops
from subjects.engines.sglang.pool import SglangPool
from subjects.engines.sglang.trees import TreeBatch, tree_keys


class OurArithmetic:
    """Our ops in place of the engine's two attention kernels. Bits are then the reference's.

    `batch` is the engine batch of the eager forward under way: the extend kernel is given
    the new tokens' K and V, and the ops read them where they were stored. `layer` is the
    layer under way.
    """

    def __init__(self, ops: Ops, pool: SglangPool, config: ModelConfig) -> None:
        self.ops = ops
        self.pool = pool
        self.config = config
        self.batch: Any = None
        self.layer = 0

    @property
    def most_keys(self) -> int:
        """How many keys a token of the layer under way may list."""
        return self._most_keys(masked=False)

    def _most_keys(self, *, masked: bool) -> int:
        return most_keys(self.config, self.config.layers[self.layer], masked=masked)

    def install(self, backend: Any) -> None:
        """Take the place of a backend's kernels."""
        backend.decode_attention_fwd = self.decode
        backend.extend_attention_fwd = self.extend

    def decode(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        *rest: Any,
        sinks: Tensor | None = None,
        **named: Any,
    ) -> None:
        """Attend from each row to its listed slots."""
        rows = query.shape[0]
        mixed = self.ops.attention(
            query,
            torch.stack((keys, values)),
            kv_indptr[:rows],
            kv_indptr[1 : rows + 1],
            kv_indices,
            sinks,
            self.most_keys,
        )
        out.copy_(mixed.view(out.shape))

    def extend(
        self,
        query: Tensor,
        new_keys: Tensor,
        new_values: Tensor,
        out: Tensor,
        keys: Tensor,
        values: Tensor,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        custom_mask: Tensor | None,
        causal: bool,
        mask_indptr: Tensor | None,
        longest: int,
        *rest: Any,
        sliding_window_size: int = -1,
        sinks: Tensor | None = None,
        window_kv_offsets: Tensor | None = None,
        **named: Any,
    ) -> None:
        """Attend from each new token to its request's listed prefix and the new ones before it.

        With a mask the new ones are `longest` draft tokens of every request, and attend by it.
        """
        stored, window = (keys, values), sliding_window_size if sliding_window_size > -1 else None
        if custom_mask is None or mask_indptr is None:
            lists = qo_indptr, kv_indptr, kv_indices
            self._extend(query, stored, out, lists, window, sinks)
            return
        tree = TreeBatch(
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            mask=custom_mask,
            mask_indptr=mask_indptr,
            offsets=window_kv_offsets,
            drafts=longest,
            window=window,
        )
        self._verify(query, stored, (new_keys, new_values), out, tree, sinks)

    def _extend(
        self,
        query: Tensor,
        stored: tuple[Tensor, Tensor],
        out: Tensor,
        lists: tuple[Tensor, Tensor, Tensor],
        window: int | None,
        sinks: Tensor | None,
    ) -> None:
        """Attend from each new token to its request's prefix and the new ones before it."""
        loc = self.batch.out_cache_loc
        new = (loc if window is None else self.pool.translate(loc)).tolist()
        starts, ends, prefixes = (listed.tolist() for listed in lists)
        begin, slots = [0], list[int]()
        for request in range(len(starts) - 1):
            prefix = prefixes[ends[request] : ends[request + 1]]
            for token in range(starts[request], starts[request + 1]):
                seen = prefix + new[starts[request] : token + 1]
                slots += seen if window is None else seen[-window:]
                begin.append(len(slots))
        bounds = torch.tensor(begin, device=query.device)
        mixed = self.ops.attention(
            query,
            torch.stack(stored),
            bounds[:-1],
            bounds[1:],
            torch.tensor(slots, device=query.device),
            sinks,
            self.most_keys,
        )
        out.copy_(mixed.view(out.shape))

    def _verify(
        self,
        query: Tensor,
        stored: tuple[Tensor, Tensor],
        new: tuple[Tensor, Tensor],
        out: Tensor,
        tree: TreeBatch,
        sinks: Tensor | None,
    ) -> None:
        """Attend from each draft token to its listed prefix and, by the tree's mask, the drafts.

        As the kernel does, it takes the drafts' K and V from what it is given, and not from
        where they were stored: a graph holds no batch that could tell where that was.
        """
        slots, most = stored[0].shape[0], self._most_keys(masked=True)
        cache = torch.stack(
            [
                torch.cat((old, one.view(-1, *old.shape[1:])))
                for old, one in zip(stored, new, strict=True)
            ]
        )
        listed = tree_keys(tree, query.shape[0], most, slots)
        mixed = self.ops.attention(
            query,
            cache,
            listed.begin,
            listed.end,
            listed.slots,
            sinks,
            most,
            listed.mask,
            listed.begin,
        )
        out.copy_(mixed.view(out.shape))


def keep_whole(backend: Any, whole: Callable[..., Any]) -> None:
    """Let a backend keep its own kernels, each call of which a CPU graph keeps whole."""
    backend.decode_attention_fwd = whole(backend.decode_attention_fwd)
    backend.extend_attention_fwd = whole(backend.extend_attention_fwd)
