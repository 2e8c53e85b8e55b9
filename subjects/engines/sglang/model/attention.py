"""The one seam in the engine's attention backend: the arithmetic of its kernels.

Which slots a token reads, where it writes, and when, stays the engine's; that is what it
hands to these functions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from paritybit.reference.config import Kind, ModelConfig
from paritybit.reference.model import most_keys
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.sglang.model.trees import TreeBatch, tree_keys
from paritybit.subjects.engines.shared.missing import PartMissingError
from torch import Tensor

FURTHER = {"decode_attention_fwd": 7, "extend_attention_fwd": 3}
"""How many more positional arguments the engine gives a kernel: scratch memory, and scales."""

BESIDE = frozenset(
    {
        *("logit_cap", "xai_temperature_len", "has_mla", "use_pdl", "page_size", "uneven_batch"),
        *("sm_scale", "extend_seq_lens_cpu"),
        *("enable_lean", "lean_Mp", "lean_Lp", "lean_Op", "lean_locks"),
    }
)
"""Keyword arguments that it gives them besides. Our model and our arithmetic need none of these."""


class OurArithmetic:
    """Our ops in place of the engine's two attention kernels. Bits are then the reference's.

    `layer` is the layer of the decode under way.
    """

    def __init__(self, ops: Ops, config: ModelConfig) -> None:
        self.ops = ops
        self.config = config
        self.layer = 0

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
        must_be_known("decode_attention_fwd", rest, named)
        rows = query.shape[0]
        must_be_planned(kv_indices)
        mixed = self.ops.attention(
            query,
            torch.stack((keys, values)),
            kv_indptr[:rows],
            kv_indptr[1 : rows + 1],
            to_the_end(kv_indices),
            sinks,
            most_keys(self.config, self.config.layers[self.layer], masked=False),
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
        As the kernel does, it takes the new ones' K and V from what it is given, and not from
        where they were stored: a graph holds no batch that could tell where that was. Queries
        beyond the last request's get nothing.
        """
        must_be_known("extend_attention_fwd", rest, named)
        must_be_planned(kv_indices)
        given = TreeBatch(
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            mask=custom_mask,
            mask_indptr=mask_indptr,
            offsets=window_kv_offsets,
            drafts=longest,
            window=sliding_window_size if sliding_window_size > -1 else None,
        )
        stored = torch.stack((keys, values))
        new = torch.stack([one.view(-1, *keys.shape[1:]) for one in (new_keys, new_values)])
        mixed = self._attended(query, torch.cat((stored, new), 1), keys.shape[0], given, sinks)
        rows = torch.arange(out.shape[0], device=out.device) < qo_indptr[-1]
        mixed = mixed.view(out.shape)
        out.copy_(torch.where(rows.view(-1, *[1] * (out.ndim - 1)), mixed, out))

    def _attended(
        self, query: Tensor, cache: Tensor, stored: int, given: TreeBatch, sinks: Tensor | None
    ) -> Tensor:
        """Return what new tokens get, whose own K and V lie in a cache behind `stored` slots."""
        kind = Kind.FULL if given.window is None else Kind.SWA
        most = most_keys(self.config, kind, masked=given.mask is not None)
        tokens = query.shape[0]
        if given.mask is None:
            lists = given.qo_indptr, given.kv_indptr, given.kv_indices
            slots, begin, end = listed_keys(tokens, stored, *lists, most, given.window)
            return self.ops.attention(query, cache, begin, end, slots, sinks, most)
        seen = tree_keys(given, tokens, most, stored)
        bounds = seen.begin, seen.end
        return self.ops.attention(
            query, cache, *bounds, seen.slots, sinks, most, seen.mask, seen.begin
        )


def must_be_known(kernel: str, rest: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise PartMissingError for an argument of a kernel that is not known here.

    It may be one that our arithmetic goes by, under another name or in another place. One that is
    None or False is switched off, and cannot be.
    """
    if len(rest) > FURTHER[kernel]:
        raise PartMissingError(
            f"the engine passes unknown positional arguments to its {kernel}: "
            f"{len(rest) - FURTHER[kernel]} more than expected"
        )
    for name, value in named.items():
        if name not in BESIDE and value is not None and value is not False:
            raise PartMissingError(f"the engine passes the unknown argument {name} to its {kernel}")


class UnplannedError(PartMissingError):
    """The engine's attention backend lists no keys for a kind of layer."""


def must_be_planned(kv_indices: Tensor | None) -> None:
    """Raise UnplannedError for keys of which an engine's backend has made no list."""
    if kv_indices is None:
        raise UnplannedError("the engine's attention backend has no key lists for such a layer")


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
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the keys of each of T new tokens: places, and where a token's begin and end in them.

    Those of request r are tokens starts[r] .. starts[r+1]-1, and its prefix is at the places
    indices[prefixes[r] : prefixes[r+1]]; token t itself is at place `stored` + t. A token sees
    the last `window` of its prefix and of the new ones up to itself, all where that is None,
    and `most` of them at most. It asks nothing of the device, so that a graph can hold it.
    """
    device, requests = indices.device, starts.shape[0] - 1
    token, turn = torch.arange(tokens, device=device), torch.arange(most, device=device)
    request = (starts[1:] <= token[:, None]).sum(1).clamp(max=requests - 1)
    before = prefixes[request + 1] - prefixes[request]
    total = before + token - starts[request] + 1
    first = torch.zeros_like(total) if window is None else (total - window).clamp(min=0)
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
