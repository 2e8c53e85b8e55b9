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
from subjects.engines.sglang.loading import PartMissingError


class OurArithmetic:
    """Our ops in place of the engine's two attention kernels. Bits are then the reference's.

    `layer` is the layer under way.
    """

    def __init__(self, ops: Ops, config: ModelConfig) -> None:
        self.ops = ops
        self.config = config
        self.layer = 0

    @property
    def most_keys(self) -> int:
        """How many keys a token of the layer under way may list."""
        return most_keys(self.config, self.config.layers[self.layer], masked=False)

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
        must_be_planned(kv_indices)
        mixed = self.ops.attention(
            query,
            torch.stack((keys, values)),
            kv_indptr[:rows],
            kv_indptr[1 : rows + 1],
            to_the_end(kv_indices),
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
        *rest: Any,
        sliding_window_size: int = -1,
        sinks: Tensor | None = None,
        **named: Any,
    ) -> None:
        """Attend from each new token to its request's listed prefix and the new ones before it."""
        must_be_planned(kv_indices)
        slots, begin, end = listed_keys(
            query.shape[0],
            keys.shape[0],
            qo_indptr,
            kv_indptr,
            kv_indices,
            self.most_keys,
            max(sliding_window_size, 0),
        )
        stored = torch.stack((keys, values))
        new = torch.stack(
            (new_keys.view(-1, *keys.shape[1:]), new_values.view(-1, *keys.shape[1:]))
        )
        mixed = self.ops.attention(
            query, torch.cat((stored, new), 1), begin, end, slots, sinks, self.most_keys
        )
        out.copy_(mixed.view(out.shape))


def must_be_planned(kv_indices: Tensor | None) -> None:
    """Raise PartMissingError for keys of which an engine's backend has made no list."""
    if kv_indices is None:
        raise PartMissingError("the engine's attention backend lists no keys for such a layer")


def to_the_end(values: Tensor) -> Tensor:
    """Return a list with all that follows it in its storage.

    A kernel is told where a list begins and not where it ends, and a graph's may have grown
    since it was captured.
    """
    whole = values.untyped_storage().nbytes() // values.element_size()
    return values.as_strided((whole - values.storage_offset(),), (1,))


def listed_keys(
    tokens: int,
    stored: int,
    starts: Tensor,
    prefixes: Tensor,
    indices: Tensor,
    most: int,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the keys of each of T new tokens: places, and where a token's begin and end in them.

    Those of request r are tokens starts[r] .. starts[r+1]-1, and its prefix is at the places
    indices[prefixes[r] : prefixes[r+1]]; token t itself is at place `stored` + t. A token sees
    the last `window` of its prefix and of the new ones up to itself, all where that is 0, and
    `most` of them at most. It asks nothing of the device, so that a graph can hold it.
    """
    device, requests = indices.device, starts.shape[0] - 1
    token, turn = torch.arange(tokens, device=device), torch.arange(most, device=device)
    request = (starts[1:] <= token[:, None]).sum(1).clamp(max=requests - 1)
    before = prefixes[request + 1] - prefixes[request]
    total = before + token - starts[request] + 1
    first = (total - window).clamp(min=0) if window else torch.zeros_like(total)
    place = first[:, None] + turn
    listed = torch.cat((indices, indices.new_zeros(1)))
    old = listed[(prefixes[request][:, None] + place).clamp(max=indices.shape[0])]
    new = stored + starts[request][:, None] + place - before[:, None]
    slots = torch.where(place < before[:, None], old, new.clamp(max=stored + tokens - 1))
    begin = token * most
    return slots.flatten(), begin, begin + (total - first).clamp(max=most)


def keep_whole(backend: Any, whole: Callable[..., Any]) -> None:
    """Let a backend keep its own kernels, each call of which a CPU graph keeps whole."""
    backend.decode_attention_fwd = whole(backend.decode_attention_fwd)
    backend.extend_attention_fwd = whole(backend.extend_attention_fwd)
