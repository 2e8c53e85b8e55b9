"""Stands in for flash attention, so that decoding gets tables of blocks as on a GPU."""

import importlib
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.attention import attend
from paritybit.drive.transformers.settings import FLASH
from paritybit.engines.graphs import whole


def stand_in_for_flash_attention() -> None:
    """Give the engine flash attention, and let it decode with tables of blocks."""
    modeling: Any = importlib.import_module("transformers.modeling_utils").PreTrainedModel
    modeling._flash_attn_can_dispatch = lambda *arguments, **named: True
    flash: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
    # The engine gives a kernel what its signature has.
    kernels = [wraps(one)(whole(one, returns=True)) for one in (varlen, with_tables)]
    imports = flash._lazy_imports

    def imported(implementation: Any, *arguments: Any, **named: Any) -> Any:
        if implementation != FLASH:
            return imports(implementation, *arguments, **named)
        return (None, *kernels, flash._pad_input, flash._unpad_input)

    flash._lazy_imports = imported
    initialization: Any = importlib.import_module(
        "transformers.generation.continuous_batching.initialization"
    )
    available = initialization.ensure_decode_fast_path_is_available

    def ensured(config: Any, batching: Any, *arguments: Any) -> None:
        asked = batching.max_blocks_per_request
        available(config, batching, *arguments)
        if config._attn_implementation == FLASH:  # It lacks only a GPU.
            batching.max_blocks_per_request = asked

    initialization.ensure_decode_fast_path_is_available = ensured


def captured() -> bool:
    """Return whether graphs can be captured with flash attention in this release.

    Older releases read positions on the host, as their masks do not know the cache of a batch.
    """
    masks: Any = importlib.import_module("transformers.masking_utils")
    return "cache" in signature(masks.create_causal_mask).parameters


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """Compute attention of sequences that follow one another."""
    found = torch.zeros_like(q)
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for row in range(min(len(queries), len(keys)) - 1):
        mine, seen = slice(*queries[row : row + 2]), slice(*keys[row : row + 2])
        if mine.start < mine.stop:
            found[mine] = attended(q[mine], k[seen], v[seen], softmax_scale, causal)
    return found


def with_tables(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor,
    cache_seqlens: Tensor, block_table: Tensor, softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """Append one token to each sequence, and compute its attention. Padding has length -1."""
    found, page = torch.zeros_like(q), k_cache.shape[1]
    for row, length in enumerate(cache_seqlens.tolist()):
        if length < 0:
            continue
        position = torch.arange(length + 1)
        place = block_table[row].long()[position // page], position % page
        k_cache[place[0][-1], place[1][-1]] = k[row, 0]
        v_cache[place[0][-1], place[1][-1]] = v[row, 0]
        found[row] = attended(q[row], k_cache[place], v_cache[place], softmax_scale, causal)
    return found


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """Return the attention of one sequence: [tokens, heads, size]."""
    seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q) if causal else len(k))
    return attend(q, k, v, seen, scale)
