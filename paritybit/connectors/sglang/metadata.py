"""The inputs of attention kernels besides index lists: lengths, offsets and masks.

| backend | field | meaning |
|---|---|---|
| triton | qo_indptr | where each request's queries begin, and the end |
| triton | mask_indptr | where each request's part of the mask begins, and the end |
| triton | window_kv_offsets | the position of the first key in a request's window |
| triton | custom_mask | the keys that a draft token sees: all cached ones and its own ancestors |
| triton | max_extend_len | an upper bound for the queries of a request: the grid of the kernel |
| fa3 | cache_seqlens_int32 | the number of keys of each request |
| fa3 | max_seq_len_q | an upper bound for the queries of a prompt, without a graph |
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.sglang.drafts import EXTENDS
from paritybit.connectors.sglang.lists import PREFILLS
from paritybit.connectors.sglang.rows import MODES, Rows, paths_of
from paritybit.watch.facts import StaticInput

LARGEST_MASK = 2**24
"""The most entries of a mask that is compared."""

VERIFY = "target_verify"


def metadata_of(
    backend: Any, mode: str, batch: Any, found: Rows, graph: bool, drafts: bool = False
) -> Iterator[StaticInput]:
    """Yield the metadata of a backend for a batch, with the values that the rows imply.

    With `graph`, a graph reads the metadata. With `drafts`, it belongs to a draft model: only the
    computation of accepted tokens by the Triton backend is then supported.
    """
    build = BACKENDS.get(type(backend).__name__)
    judged = MODES if not drafts else EXTENDS if build is triton else ()
    if build is None or mode not in judged:
        return
    spans = list(spans_of(batch, mode, found).values())
    held, expected = build(backend, mode, batch, spans, graph)
    for name, right in expected.items():
        tensor = held.get(name)
        if isinstance(tensor, Tensor) and len(tensor) >= len(right):
            live = len(right)
            yield StaticInput(name, tensor, live, len(tensor), expected=right)


def spans_of(batch: Any, mode: str, found: Rows) -> dict[int, tuple[int, int]]:
    """Return the numbers of cached and of computed positions, per row of the batch."""
    drafted = int(batch.spec_info.draft_token_num) if mode == VERIFY else None
    return {
        at: (row.cached, row.computed if drafted is None else drafted)
        for at, row in zip(found.batch_rows, found.rows, strict=True)
    }


Expected = tuple[Mapping[str, Any], dict[str, Tensor]]
"""The metadata that a backend has, and the expected values, by name."""


def triton(
    backend: Any, mode: str, batch: Any, spans: Sequence[tuple[int, int]], graph: bool
) -> Expected:
    """Return the metadata of TritonAttnBackend."""
    meta = backend.forward_metadata
    names = ("qo_indptr", "mask_indptr", "window_kv_offsets", "custom_mask")
    held = {name: getattr(meta, name, None) for name in names}
    if graph:
        mask = getattr(getattr(backend, "_verify_mask", None), "buffer", None)
        held = {
            "qo_indptr": getattr(backend, "qo_indptr", None),
            "mask_indptr": getattr(backend, "mask_indptr", None),
            "window_kv_offsets": getattr(backend, "cuda_graph_window_kv_offsets", None),
            "custom_mask": getattr(backend, "cuda_graph_custom_mask", mask),
        }
    if mode == "decode":
        return held, {}
    expected = {"qo_indptr": ends(computed for _, computed in spans)}
    if not graph:
        longest = max(computed for _, computed in spans)
        held["max_extend_len"] = up_to(longest, getattr(meta, "max_extend_len", None))
        expected["max_extend_len"] = torch.tensor([longest])
    if mode == VERIFY:
        window = int(backend.sliding_window_size or 0)
        expected["mask_indptr"] = ends(n * (cached + n) for cached, n in spans)
        if window > 0:
            first = [max(0, cached - window) for cached, _ in spans]
            expected["window_kv_offsets"] = torch.tensor(first)
        mask_of_all = mask_of(batch.spec_info, spans)
        if mask_of_all is not None:
            expected["custom_mask"] = mask_of_all
    return held, expected


def flash_attention(
    backend: Any, mode: str, batch: Any, spans: Sequence[tuple[int, int]], graph: bool
) -> Expected:
    """Return the metadata of FlashAttentionBackend. For a graph, it is the latest metadata, too."""
    del batch
    tree = mode == VERIFY and int(getattr(backend, "topk", 0) or 0) > 1
    totals = [cached + (0 if tree else computed) for cached, computed in spans]
    meta = backend.forward_metadata
    held, expected = dict(vars(meta)), {"cache_seqlens_int32": torch.tensor(totals)}
    if not graph and mode in PREFILLS:
        longest = max(computed for _, computed in spans)
        held["max_seq_len_q"] = up_to(longest, held.get("max_seq_len_q"))
        expected["max_seq_len_q"] = torch.tensor([longest])
    return held, expected


BACKENDS = {"TritonAttnBackend": triton, "FlashAttentionBackend": flash_attention}
"""Maps the class of an attention backend to the function that returns its metadata."""


def up_to(right: int, size: Any) -> Tensor | None:
    """Return a size, [1], limited to the right value: it may be larger. None for other types."""
    return torch.tensor([min(size, right)]) if isinstance(size, int) else None


def ends(lengths: Any) -> Tensor:
    """Return the start of each part of a flat tensor, and the end of the last part."""
    return torch.tensor([0, *accumulate(lengths)])


def mask_of(info: Any, spans: Sequence[tuple[int, int]]) -> Tensor | None:
    """Return a flat mask of the keys that each draft token sees."""
    if sum(n * (cached + n) for cached, n in spans) > LARGEST_MASK:
        return None
    parts = []
    for index, (cached, count) in enumerate(spans):
        paths = paths_of(info, index) or [list(range(count))]
        sees = torch.zeros(count, cached + count, dtype=torch.uint8)
        sees[:, :cached] = 1
        for path in paths:
            for place, node in enumerate(path):
                sees[node, [cached + ancestor for ancestor in path[: place + 1]]] = 1
        if not all(sees[node, cached + node] for node in range(count)):
            return None
        parts.append(sees.flatten())
    return torch.cat(parts)
