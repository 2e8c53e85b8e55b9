"""The index lists that an attention backend hands to its kernels.

| backend | decode | extend and verify |
|---|---|---|
| triton | all positions, the window's last ones without the query's first key | cached positions |
| fa3 | a table of all positions; the kernel masks the window | the same |

Triton's decode reads one key fewer than its extend, as reported in sgl-project/sglang#32087.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.sglang.pools import NotRecognisedError, Pool
from paritybit.connectors.sglang.sources import source_of
from paritybit.watch.facts import IndexList


def lists_of(
    backend: Any, pool: Pool, mode: str, batch_rows: Sequence[int], size: int, graph: bool
) -> list[IndexList]:
    """Return the lists that a backend built for a batch of `size` rows, padding included.

    `batch_rows` gives the batch's row of each row of the forward. `graph` says that a graph reads
    them. Raises NotRecognisedError.
    """
    build = BACKENDS.get(type(backend).__name__)
    if build is None:
        raise NotRecognisedError(
            f"the index lists of the attention backend {type(backend).__name__}"
        )
    found: list[IndexList] = build(backend, pool, mode, size, graph)
    return [spread(given, batch_rows, size) for given in found]


def spread(given: IndexList, batch_rows: Sequence[int], size: int) -> IndexList:
    """Repeat a batch's row for each row of the forward that stands for it; padding stays last."""
    live = len(set(batch_rows))
    if list(batch_rows) == list(range(live)):
        return given
    index = torch.tensor([*batch_rows, *range(live, size)], device=given.counts.device)
    return IndexList(
        given.name,
        given.group,
        given.entries,
        given.offsets[index],
        given.counts[index],
        given.covers,
        given.exact,
        given.page,
        given.source,
        given.window,
    )


def triton(backend: Any, pool: Pool, mode: str, size: int, graph: bool) -> list[IndexList]:
    """Return the flat lists of TritonAttnBackend."""
    decode = mode == "decode"
    meta = backend.forward_metadata
    size_of_window = int(backend.sliding_window_size or 0)
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
                covers="all" if decode else "cached",
                source=source_of(name, type(backend)),
                window=size_of_window + (not decode) if sliding else None,
            )
        )
    return found


def flash_attention(backend: Any, pool: Pool, mode: str, size: int, graph: bool) -> list[IndexList]:
    """Return the tables of FlashAttentionBackend. Those of a graph are its latest metadata too."""
    del graph
    meta = backend.forward_metadata
    page = int(backend.page_size)
    tree = mode == "target_verify" and int(getattr(backend, "topk", 0) or 0) > 1
    lengths: Tensor = meta.cache_seqlens_int32[:size].long()
    found = []
    for sliding, name in ((False, "page_table"), (True, "swa_page_table")):
        group, table = group_of(pool, sliding), getattr(meta, name, None)
        if group is None or table is None:
            continue
        offsets = torch.arange(len(lengths), device=table.device) * table.shape[1]
        found.append(
            IndexList(
                name,
                group,
                table.contiguous().flatten(),
                offsets,
                (lengths + page - 1) // page,
                covers="cached" if tree else "all",
                exact=False,
                page=page,
                source=source_of(name, type(backend)),
            )
        )
    return found


def group_of(pool: Pool, sliding: bool) -> str | None:
    """Return the name of the pool's group of sliding layers, or of the others."""
    names = [name for name in pool.groups if (name == pool.sliding) == sliding]
    return names[0] if names else None


BACKENDS: dict[str, Callable[[Any, Pool, str, int, bool], list[IndexList]]] = {
    "TritonAttnBackend": triton,
    "FlashAttentionBackend": flash_attention,
}
"""Per class of an attention backend, what returns its lists."""
