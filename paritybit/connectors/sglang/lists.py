"""The index lists that an attention backend passes to its kernels.

| backend | decode | extend and verify |
|---|---|---|
| triton | all positions; of a window, all but its first key | cached positions |
| fa3 | a table of all positions; the kernel masks the window | the same |

Triton's decode reads one key fewer than its extend, as reported in sgl-project/sglang#32087.

When a draft model computes accepted tokens, releases up to 0.5.12 also list these. Each draft step
has its own lists, with a row per branch and one more position than the step before.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sglang.pools import Pool
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import IndexList

PREFILLS = ("extend", "mixed")
"""Modes that compute prompts. FlashAttention keeps a row per request slot for their graphs."""


def lists_of(
    backend: Any, pool: Pool, mode: str, found: Rows, size: int, graph: bool
) -> list[IndexList]:
    """Return the lists that a backend built for a batch of `size` rows, padding included."""
    kind = type(backend).__name__
    if kind == "TritonMultiStepDraftBackend":
        return steps(backend, pool, size)
    build = BACKENDS.get(kind)
    if build is None:
        raise NotRecognisedError(f"the index lists of the attention backend {kind}")
    lists: list[IndexList] = build(backend, pool, mode, size, graph)
    if mode in ("draft_extend", "draft_extend_v2") and lists:
        given, row = lists[0], found.rows[0]
        computed = None if int(given.counts[0]) == row.cached + row.computed else 0
        lists = [replace(given, computed=computed) for given in lists]
    return [spread(given, found.batch_rows, size) for given in lists]


def attending(backend: Any) -> Any:
    """Return the backend for attention layers in a backend that also has one for others."""
    return getattr(backend, "full_attn_backend", backend)


def spread(given: IndexList, batch_rows: Sequence[int], size: int) -> IndexList:
    """Repeat each row of a batch for all rows of the forward that belong to it."""
    live = len(set(batch_rows))
    if list(batch_rows) == list(range(live)):
        return given
    index = torch.tensor([*batch_rows, *range(live, size)], device=given.counts.device)
    return replace(given, offsets=given.offsets[index], counts=given.counts[index])


def triton(backend: Any, pool: Pool, mode: str, size: int, graph: bool) -> list[IndexList]:
    """Return the flat lists of TritonAttnBackend."""
    decode = mode == "decode"
    if graph and mode in PREFILLS:
        raise NotRecognisedError("the index lists of Triton in a graph for prefills")
    meta = backend.forward_metadata
    size_of_window = (pool.window or 1) - 1  # The model's: the backend's own may be wrong.
    found = []
    for sliding, start in ((False, ""), (True, "window_")):
        group = group_of(pool, sliding) or group_of(pool, not sliding)
        if sliding and size_of_window <= 0:
            continue
        assert group is not None
        if graph:
            bounds = getattr(backend, start + "kv_indptr")
            name = f"cuda_graph_{start}kv_indices"
            entries = getattr(backend, name)
        else:
            name = start + "kv_indices"
            bounds, entries = getattr(meta, start + "kv_indptr"), getattr(meta, name)
        bounds = bounds[: size + 1].long()
        found.append(
            IndexList(
                name,
                group,
                entries,
                bounds[:-1],
                bounds[1:] - bounds[:-1],
                computed=None if decode else 0,
                window=size_of_window + (not decode) if sliding else None,
            )
        )
    return found


def steps(backend: Any, pool: Pool, size: int) -> list[IndexList]:
    """Return the lists of each step of a graph of draft steps, for `size` requests."""
    if getattr(backend, "draft_window_size", 0):
        raise NotRecognisedError("the index lists of a draft with a window of its own")
    rows = size * int(backend.topk)
    found = []
    for sliding, start in ((False, ""), (True, "window_")):
        name = f"cuda_graph_{start}kv_indices"
        entries = getattr(backend, name, None)
        group = group_of(pool, sliding) or group_of(pool, not sliding)
        if entries is None or group is None:
            continue
        for step in range(len(backend.attn_backends)):
            bounds = getattr(backend, start + "kv_indptr")[step, : rows + 1].long()
            found.append(
                IndexList(
                    name,
                    group,
                    entries[step],
                    bounds[:-1],
                    bounds[1:] - bounds[:-1],
                    computed=1,
                    step=step,
                    window=(pool.window or 1) - 1 if sliding else None,
                )
            )
    return found


def flash_attention(backend: Any, pool: Pool, mode: str, size: int, graph: bool) -> list[IndexList]:
    """Return the tables of FlashAttentionBackend. Its latest metadata also has those of graphs."""
    del graph
    meta = backend.forward_metadata
    page = int(backend.page_size)
    tree = mode == "target_verify" and int(getattr(backend, "topk", 0) or 0) > 1
    lengths: Tensor = meta.cache_seqlens_int32[:size].long()
    pages = (lengths + page - 1) // page
    width = int(pages.max())
    found = []
    for sliding, name in ((False, "page_table"), (True, "swa_page_table")):
        group, table = group_of(pool, sliding), getattr(meta, name, None)
        if group is None or table is None:
            continue
        table = table[: len(pages), :width]
        offsets = torch.arange(len(pages), device=table.device) * table.shape[1]
        found.append(
            IndexList(
                name,
                group,
                table.contiguous().flatten(),
                offsets,
                pages,
                computed=0 if tree else None,
                exact=False,
                page=page,
            )
        )
    return found


def group_of(pool: Pool, sliding: bool) -> str | None:
    """Return the name of the pool's group of sliding layers, or of the other layers."""
    names = [name for name in pool.groups if (name == pool.sliding) == sliding]
    return names[0] if names else None


BACKENDS: dict[str, Callable[[Any, Pool, str, int, bool], list[IndexList]]] = {
    "TritonAttnBackend": triton,
    "FlashAttentionBackend": flash_attention,
}
"""Maps the class of an attention backend to the function that returns its lists."""
