"""The one seam in the engine's attention backend: the arithmetic of its kernels.

Which slots a token reads, where it writes, and when, stays the engine's; that is what it
hands to these functions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference.config import Kind, ModelConfig
from reference.model import most_keys
from reference.ops import Ops


class OurArithmetic:
    """Our ops in place of the engine's two attention kernels. Bits are then the reference's.

    `layer` is the layer of the decode under way.
    """

    def __init__(self, ops: Ops, config: ModelConfig) -> None:
        self.ops = ops
        self.config = config
        self.layer = 0

    def most_keys(self, kind: Kind) -> int:
        """How many keys a token of a layer of one kind may list."""
        return most_keys(self.config, kind, masked=False)

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
            self.most_keys(self.config.layers[self.layer]),
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
        *rest: Any,
        sliding_window_size: int = -1,
        sinks: Tensor | None = None,
        **named: Any,
    ) -> None:
        """Attend from each new token to its request's listed prefix and the new ones before it.

        Queries beyond the last request's get nothing; of those that it lacks none is read.
        """
        windowed = sliding_window_size > -1
        starts, ends = qo_indptr.tolist(), kv_indptr.tolist()
        prefixes, stored = kv_indices.tolist(), keys.shape[0]
        begin, slots = [0], list[int]()
        for request in range(len(starts) - 1):
            prefix = prefixes[ends[request] : ends[request + 1]]
            for token in range(starts[request], min(starts[request + 1], query.shape[0])):
                new = range(stored + starts[request], stored + token + 1)
                seen = [*prefix, *new]
                slots += seen[-sliding_window_size:] if windowed else seen
                begin.append(len(slots))
        bounds, rows = torch.tensor(begin, device=query.device), len(begin) - 1
        mixed = self.ops.attention(
            query[:rows],
            torch.stack((torch.cat((keys, new_keys)), torch.cat((values, new_values)))),
            bounds[:-1],
            bounds[1:],
            torch.tensor(slots, device=query.device),
            sinks,
            self.most_keys(Kind.SWA if windowed else Kind.FULL),
        )
        out[:rows].copy_(mixed.view(out[:rows].shape))


def keep_whole(backend: Any, whole: Callable[..., Any]) -> None:
    """Let a backend keep its own kernels, each call of which a CPU graph keeps whole."""
    backend.decode_attention_fwd = whole(backend.decode_attention_fwd)
    backend.extend_attention_fwd = whole(backend.extend_attention_fwd)
