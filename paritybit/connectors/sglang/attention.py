"""What an attention backend passes to its kernels: index lists, lengths and offsets.

| backend | lists of a decode | lists of an extend or verify |
|---|---|---|
| triton | all positions; of a window, all but its first key | cached positions |
| fa3 | a table of all positions; the kernel masks the window | the same |
| fa3 | a table of the positions in each chunk; a part of a row in a chunk is a row | the same |
| dsa | tables of all positions, for an indexer by pages; it chooses some | the same |

Triton's decode reads one key fewer than its extend: see sgl-project/sglang#32087.

When a draft model computes accepted tokens, releases up to 0.5.12 also list these. Each draft step
has its own lists, with a row per branch and one more position than the step before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected, offsets, table_of
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sglang.pools import PREFILLS, SglangPool
from paritybit.connectors.sglang.rows import EXTENDS, MODES, Rows
from paritybit.connectors.sharing import Share, in_chunks, mirrored, of_lines, places_of
from paritybit.watch.facts import Chunks, IndexList, StaticInput, first_seen

VERIFY = "target_verify"
TRITON, FLASH = "TritonAttnBackend", "FlashAttentionBackend"
SPARSE = "DeepseekSparseAttnBackend"

BY_WINDOW = (False, ""), (True, "window_")
"""How the names of lists begin, without and with a window."""


def attending(backend: Any) -> Any:
    """Return the backend for attention layers in one that also has others."""
    return getattr(backend, "full_attn_backend", backend)


def lists_of(
    backend: Any, pool: SglangPool, mode: str, found: Rows, size: int, graph: bool
) -> list[IndexList]:
    """Return the lists that a backend built for a batch of `size` rows, padding included."""
    kind = type(backend).__name__
    if kind == "TritonMultiStepDraftBackend":
        return steps(backend, pool, size)
    if kind not in (TRITON, FLASH, SPARSE):
        raise NotRecognisedError(f"the index lists of the attention backend {kind}")
    if kind == SPARSE:
        return sparse_lists(backend, pool, mode, size)
    if kind == TRITON:
        lists = triton_lists(backend, pool, mode, found, size, graph)
    else:
        lists = flash_lists(backend, pool, mode, size, found)
    if mode in EXTENDS and lists:
        given, row = lists[0], found.rows[0]
        computed = None if int(given.counts[0]) == row.cached + row.computed else 0
        lists = [replace(given, computed=computed) for given in lists]
    live = len(set(found.batch_rows))
    if found.batch_rows != list(range(live)):  # Several rows of the forward have the same list.
        index = torch.tensor([*found.batch_rows, *range(live, size)], device=lists[0].counts.device)
        lists = [
            replace(given, offsets=given.offsets[index], counts=given.counts[index])
            for given in lists
        ]
    return lists


def triton_lists(
    backend: Any, pool: SglangPool, mode: str, found: Rows, size: int, graph: bool
) -> list[IndexList]:
    """Return the flat lists of TritonAttnBackend. Raises NotRecognisedError."""
    if graph and mode in PREFILLS:
        raise NotRecognisedError("the index lists of Triton in a graph for prefills")
    decode, window = mode == "decode", pool.keys  # The backend's own may be wrong.
    holder, before = (backend, "cuda_graph_") if graph else (backend.forward_metadata, "")
    lists = [
        flat(
            *(pool, sliding, name := f"{before}{start}kv_indices"),
            getattr(holder, name),
            getattr(holder, f"{start}kv_indptr")[: size + 1],
            computed=None if decode else 0,
            window=window - decode if sliding else None,
        )
        for sliding, start in BY_WINDOW
        if not sliding or window > 1
    ]
    if pool.share.ranks == 1:
        return lists
    ends = [row.cached + row.computed * decode for row in found.rows]
    return [of_positions(one, pool.share, ends) for one in lists]


def of_positions(given: IndexList, share: Share, ends: Sequence[int]) -> IndexList:
    """Return the list of a rank as one of all positions. Those of other ranks repeat its slots.

    `ends` are the right ones of the live rows. A row with another number of entries gets the first
    end that they allow.
    """
    counts = given.counts.clamp(min=0)
    right = torch.zeros_like(counts)
    right[: len(ends)] = torch.tensor(ends, device=right.device)
    found = right.where(counts == share.counts(right), share.ends(counts))
    positions = torch.arange(max(1, int(found.max())), device=counts.device)
    places = given.offsets[:, None] + share.places(positions)
    listed = torch.nn.functional.pad(given.entries.long(), (0, 1))  # It may be empty.
    entries = listed[places.clamp(max=len(given.entries))]
    offsets = torch.arange(len(counts), device=counts.device) * len(positions)
    return replace(given, entries=entries.flatten(), offsets=offsets, counts=found, exact=False)


def flat(
    pool: SglangPool, sliding: bool, name: str, entries: Tensor, bounds: Tensor, **more: Any
) -> IndexList:
    """Return the list of rows that begin and end at some bounds of a flat tensor."""
    group, ends = pool.group_of(sliding) or pool.group_of(not sliding), bounds.long()
    assert group is not None
    return IndexList(name, group, entries, ends[:-1], ends[1:] - ends[:-1], **more)


def steps(backend: Any, pool: SglangPool, size: int) -> list[IndexList]:
    """Return the lists of each step of a graph of draft steps, for `size` requests."""
    if getattr(backend, "draft_window_size", 0):
        raise NotRecognisedError("the index lists of a draft with a window of its own")
    rows = size * int(backend.topk)
    return [
        flat(
            *(pool, sliding, name, entries[step]),
            getattr(backend, start + "kv_indptr")[step, : rows + 1],
            computed=1,
            step=step,
            window=pool.keys - 1 if sliding else None,
        )
        for sliding, start in BY_WINDOW
        if (entries := getattr(backend, name := f"cuda_graph_{start}kv_indices", None)) is not None
        for step in range(len(backend.attn_backends))
    ]


def flash_lists(
    backend: Any, pool: SglangPool, mode: str, size: int, rows: Rows
) -> list[IndexList]:
    """Return the tables of FlashAttentionBackend, from its latest metadata, also for graphs."""
    meta, page = backend.forward_metadata, int(backend.page_size)
    pages = (meta.cache_seqlens_int32[:size].long() + page - 1) // page
    found = []
    for sliding, name in ((False, "page_table"), (True, "swa_page_table")):
        group, table = pool.group_of(sliding), maybe(meta, name)
        if group is None or table is None:
            continue
        table = table[: len(pages), : int(pages.max())]
        computed = 0 if tree_of(backend, mode) else None
        found.append(table_of(name, group, table, pages, page, computed))
    if (local := maybe(meta, "local_attn_metadata")) is not None:
        if mode == VERIFY:
            raise NotRecognisedError("drafts with attention in chunks")
        chunks, table = chunks_of(backend), local.local_block_table
        assert chunks is not None
        group = pool.group_of(sliding=True) or pool.group_of(sliding=False)
        assert group is not None
        spans = [(row.cached, row.computed) for _, row in rows.pairs]
        counts = -(-local.local_seqused_k.long() // page)
        firsts, counts = of_lines(in_chunks(spans, chunks.size), counts, table.shape[1])
        given = table.flatten(), firsts[:size].to(table.device), counts[:size]
        found.append(IndexList("local_block_table", group, *given, page=page, window=chunks))
    return found


def chunks_of(backend: Any) -> Chunks | None:
    """Return the chunks in which a backend attends, if it does."""
    size = maybe(backend, "local_attn_builder.attention_chunk_size")
    return None if size is None else Chunks(int(size))


def sparse_lists(backend: Any, pool: SglangPool, mode: str, size: int) -> list[IndexList]:
    """Return the tables of DeepseekSparseAttnBackend. Raises NotRecognisedError."""
    if mode != "decode" and mode not in PREFILLS:
        raise NotRecognisedError(f"the index lists of an indexer in a forward of kind {mode}")
    meta, group = backend.forward_metadata, pool.group_of(sliding=False)
    lengths, found = meta.cache_seqlens_int32[:size].long(), []
    for name, page in (("page_table_1", 1), ("real_page_table", int(meta.page_size))):
        if (table := maybe(meta, name)) is not None and group is not None:
            counts = (lengths + page - 1) // page
            table = table[:size, : int(counts.max())]
            found.append(table_of(name, group, table, counts, page, None))
    return found


def tree_of(backend: Any, mode: str) -> bool:
    """Return whether FlashAttentionBackend verifies a tree apart from the cached positions."""
    return mode == VERIFY and int(getattr(backend, "topk", 0) or 0) > 1


def metadata_of(
    backend: Any,
    mode: str,
    batch: Any,
    found: Rows,
    graph: bool,
    drafts: bool = False,
    parts: tuple[Any, int, int] = (None, 0, 1),
) -> Iterator[StaticInput]:
    """Yield the other metadata of a backend, with the values that the rows imply.

    With `graph`, a graph reads it. With `drafts`, it belongs to a draft model, of which only
    Triton's computation of accepted tokens is supported. `parts` are the arguments of
    `split_metadata` without the spans.
    """
    kind = type(backend).__name__
    judged = MODES if not drafts else EXTENDS if kind == TRITON else ()
    if kind not in (TRITON, FLASH, SPARSE) or mode not in judged:
        return
    spans = list(spans_of(batch, mode, found).values())
    if kind == TRITON:
        held, right = triton_metadata(backend, mode, spans, graph)
    elif kind == SPARSE:
        held, right = sparse_metadata(backend, mode, spans)
    else:
        tree, (held, right) = tree_of(backend, mode), split_metadata(spans, *parts)
        held = {**vars(backend.forward_metadata), **held}
        if (local := held.get("local_attn_metadata")) is not None:
            cut = in_chunks(spans, None if (chunks := chunks_of(backend)) is None else chunks.size)
            held |= vars(local)
            lengths = [last - first_seen(chunks, first) for _, first, last in cut]
            right["local_seqused_k"] = lengths
            right["local_query_start_loc"] = offsets(last - first for _, first, last in cut)
        right["cache_seqlens_int32"] = [cached + (not tree) * n for cached, n in spans]
    for name, values in right.items():
        tensor = held.get(name)
        if isinstance(tensor, Tensor) and len(tensor) >= len(values):
            yield expected(name, tensor, values, size=len(tensor))


def split_metadata(
    spans: Sequence[tuple[int, int]], split: Any, rank: int, ranks: int
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return what says which tokens of prompts a rank computes, and the expected values, by name.

    `zigzag_index` says which parts in `split_list` it computes, in order. `cp_reverse_index` brings
    the parts of all ranks back in order. There is none unless each rank has two parts.
    """
    if maybe(split, "zigzag_index") is None:
        return {}, {}
    parts = mirrored(spans, ranks)
    every = [places_of(mine, spans) for mine in parts]
    gathered, whole = [*chain(*every)], [*range(sum(map(len, every)))]
    right = {"zigzag_index": every[rank], "cp_reverse_index": whole}
    lists = (
        ("zigzag_index", whole, split.split_list),
        ("cp_reverse_index", gathered, split.reverse_split_len),
    )
    held = dict[str, Any]()
    for name, given, sizes in lists:
        pieces = [given[first:last] for first, last in pairwise(offsets(sizes))]
        found = [one for at in getattr(split, name) if at < len(pieces) for one in pieces[at]]
        held[name] = torch.tensor([*found, *[-1] * (len(right[name]) - len(found))])
    halves = parts[rank][: len(spans)], parts[rank][len(spans) :]
    for name, part in zip(("prev", "next"), halves, strict=True):
        right[f"kv_len_{name}_tensor"] = [last for _, _, last in part]
        right[f"cu_seqlens_q_{name}_tensor"] = offsets(last - first for _, first, last in part)
    return {**vars(split), **held}, right


def spans_of(batch: Any, mode: str, found: Rows) -> dict[int, tuple[int, int]]:
    """Return the numbers of cached and of computed positions, per row of the batch."""
    drafted = int(batch.spec_info.draft_token_num) if mode == VERIFY else None
    return {
        at: (row.cached, row.computed if drafted is None else drafted) for at, row in found.pairs
    }


def triton_metadata(
    backend: Any, mode: str, spans: Sequence[tuple[int, int]], graph: bool
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return the metadata of TritonAttnBackend, and the expected values, by name.

    `qo_indptr` and `mask_indptr` say where each request's queries and part of the mask begin, and
    `window_kv_offsets` the position of the first key in its window. `max_extend_len` bounds the
    queries of a request: it is the grid of the kernel.
    """
    names, holder = ("qo_indptr", "mask_indptr"), backend if graph else backend.forward_metadata
    held = {name: maybe(holder, name) for name in names}
    key = "cuda_graph_window_kv_offsets" if graph else "window_kv_offsets"
    held["window_kv_offsets"] = maybe(holder, key)
    right = dict[str, list[int]]()
    if mode != "decode":
        right["qo_indptr"] = offsets(computed for _, computed in spans)
        if not graph:
            longest = max(computed for _, computed in spans)
            given = maybe(holder, "max_extend_len")
            if isinstance(given, int):  # It may be larger.
                held["max_extend_len"] = torch.tensor([min(given, longest)])
                right["max_extend_len"] = [longest]
    if mode == VERIFY:
        window = int(backend.sliding_window_size or 0)
        right["mask_indptr"] = offsets(n * (cached + n) for cached, n in spans)
        if window > 0:
            right["window_kv_offsets"] = [max(0, cached - window) for cached, _ in spans]
    return held, right


def sparse_metadata(
    backend: Any, mode: str, spans: Sequence[tuple[int, int]]
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return the metadata of DeepseekSparseAttnBackend, and the expected values, by name.

    Each query has a length. Those of prompts also have the first and the last key of theirs among
    the keys of all requests, and the number of their request.
    """
    meta, prefills = backend.forward_metadata, mode in PREFILLS
    bounds = offsets(cached + computed for cached, computed in spans)
    lengths = [at + 1 for cached, n in spans for at in range(cached, cached + n)]
    right = {
        "cache_seqlens_int32": [cached + computed for cached, computed in spans],
        "cu_seqlens_k": bounds,
        "dsa_seqlens_expanded": lengths,
        "dsa_cache_seqlens_int32": [min(n, int(backend.dsa_index_topk)) for n in lengths],
    }
    held = dict(vars(meta))
    if prefills:
        computed = [n for _, n in spans]
        right |= {
            "cu_seqlens_q": offsets(computed),
            "dsa_cu_seqlens_k": offsets(right["dsa_cache_seqlens_int32"]),
            "token_to_batch_idx": [at for at, n in enumerate(computed) for _ in range(n)],
        }
    if prefills and (ranges := maybe(meta, "indexer_k_start_end")) is not None:
        firsts = [first for first, (_, n) in zip(bounds, spans, strict=False) for _ in range(n)]
        held |= {"first key": ranges[0], "last key": ranges[1]}
        ends = [first + length for first, length in zip(firsts, lengths, strict=True)]
        right |= {"first key": firsts, "last key": ends}
    return (held, right) if mode == "decode" or prefills else ({}, {})
