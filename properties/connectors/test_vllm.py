"""The connector of vLLM over stand-ins of the parts that it looks at."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sharing import Share, in_chunks
from paritybit.connectors.vllm import states as kept_states
from paritybit.connectors.vllm.batch import (
    Compressed,
    SplitBatch,
    VllmBatch,
    bases_of,
    counts_of,
    of_indexer,
    split,
    wrong_lengths,
)
from paritybit.connectors.vllm.engine import (
    EFFECTS,
    ENGINES,
    RANKS,
    TOGETHER,
    WARM_UP,
    VllmEngine,
)
from paritybit.connectors.vllm.moving import unfollowed
from paritybit.connectors.vllm.pools import EngineGroup, View, VllmPool, by_slot, described
from paritybit.connectors.vllm.requests import column_inside
from paritybit.watch.bits import Checksums
from paritybit.watch.checks.wrong_list import fault
from paritybit.watch.digests import Digests
from paritybit.watch.facts import Chunks, Forward, Group, Row, same
from paritybit.watch.lines import Lines
from paritybit.watch.settings import Settings
from properties.connectors.parts import Part, hooked
from properties.connectors.parts_vllm import (
    BLOCKS,
    DECODE,
    FIRST,
    GROUPS,
    PROMPT,
    TABLE,
    Served,
    a_pool,
    a_request,
    output,
)
from properties.support.watching import lines_in, skip

# Pools.


@pytest.mark.parametrize("alone", [False, True])
def test_a_layer_of_the_only_group_may_have_a_window(alone: bool) -> None:
    """Where the engine has one group for all layers, keys that its window left stay cached."""
    config, layers, _ = a_pool()
    layers["slid"] = Part(kv_cache=torch.zeros(BLOCKS, 4, 2), sliding_window=4)
    if alone:
        names = {"layer_names": ["full", "slid"], "kv_cache_spec": GROUPS[0].kv_cache_spec}
        config.kv_cache_groups = (Part(**names),)
    found = [layer.window for group in described(config, layers).groups for layer in group.layers]
    assert found == [None, 4 if alone else None]


@pytest.mark.parametrize(
    ("cache", "parts"),
    [
        (torch.zeros(8, 4, 2, 6), 1),  # Blocks, tokens, heads, width.
        (torch.zeros(8, 4, 2, 6).transpose(1, 2), 1),  # The same as heads, tokens.
        (torch.zeros(2, 8, 4, 2, 3), 2),  # K and V apart.
    ],
)
def test_a_slot_is_a_row_of_a_cache_whatever_its_layout(cache: torch.Tensor, parts: int) -> None:
    found, block = by_slot(cache, 8, 4)
    assert block is None
    assert [part.shape[0] for part in found] == [32] * parts
    found[0][4 * 5 + 3] = 1
    rows = cache if cache.dim() == 4 else cache[0]
    rows = rows if rows.shape[1] == 4 else rows.transpose(1, 2)
    assert bool((rows[5, 3] == 1).all())
    assert int(rows.sum()) == rows[5, 3].numel()


def test_blocks_whose_heads_are_apart_are_cut() -> None:
    cache = torch.arange(8 * 2 * 4 * 6).view(8, 2, 4, 6)  # Blocks, heads, tokens, width.
    found, block = by_slot(cache, 8, 4)
    assert block == 4
    assert [part[5, 3].tolist() for part in found] == cache[5, :, 3].tolist()


@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (2, 1), (2, 4), (3, 2), (4, 2)])
def test_each_position_of_a_shared_context_has_a_slot_in_one_rank(
    ranks: int, interleave: int
) -> None:
    blocks, page = [3, 5, 7], 4
    size = len(blocks) * page * ranks
    stored = dict[int, tuple[int, int]]()
    for start in range(0, size, interleave):  # In turn, each at the first slots that are left.
        rank = start // interleave % ranks
        for position in range(start, start + interleave):
            at = sum(one == rank for one, _ in stored.values())
            stored[position] = rank, blocks[at // page] * page + at % page
    for rank in range(ranks):
        share = Share(rank, ranks, interleave)
        right = [slot if owner == rank else -1 for owner, slot in stored.values()]
        pool = VllmPool((), page, (), share=share)
        assert pool.of_positions(blocks).clamp(min=-1).tolist() == right
        found = share.slots(torch.tensor([blocks]), torch.arange(size), page)
        assert found.tolist() == [right]
        ends = torch.arange(size + 1)
        counts = [sum(slot >= 0 for slot in right[:end]) for end in range(size + 1)]
        assert share.counts(ends).tolist() == counts
        assert torch.equal(share.counts(share.ends(share.counts(ends))), share.counts(ends))


def shared(rank: int) -> tuple[VllmBatch, Forward, VllmPool]:
    """Return a batch of two requests, one of which has no context, and of a padded row."""
    share = Share(rank, 2, 1)
    pool = VllmPool((), 2, (), share=share)
    slots = [pool.of_positions([2, 3]), pool.of_positions([4])]
    rows = (
        Row("a", [*range(6)], 5, 1, {"blocks": slots[0][:6]}),
        Row("b", [*range(3)], 0, 3, {"blocks": slots[1][:3]}),
    )
    mapping = torch.cat([slots[0][5:6], slots[1][:3], torch.tensor([-1])]).clamp(min=-1)
    metadata = Part(
        block_table=torch.tensor([[2, 3], [4, 0], [0, 0]]),
        seq_lens=torch.tensor([6, 3, 0]),
        query_start_loc=torch.tensor([0, 1, 4, 4]),
        slot_mapping=mapping,
        dcp_context_kv_lens=torch.tensor([3 - rank, 0, 0]),
    )
    ids = torch.zeros(5, dtype=torch.int64)
    batch = VllmBatch(ids, ids, (metadata,), (2, 4), (3, 5), share)
    return batch, Forward("prefill", rows), pool


def halved(rank: int) -> tuple[SplitBatch, Forward, VllmPool]:
    """Return a rank's batch of a decoding request, a prompt of 5 tokens after 3, and one of 1.

    Rank 0 has the only token of the first and of the last request, and the tokens 3 and 4, and no
    last part, of the second. Rank 1 has the others.
    """
    pool = VllmPool((), 2, ())
    rows = (
        Row("a", [*range(6)], 5, 1, {"blocks": pool.of_positions([2, 3, 4])}),
        Row("b", [*range(8)], 3, 5, {"blocks": pool.of_positions([5, 6, 7, 8])}),
        Row("c", [9], 0, 1, {"blocks": pool.of_positions([9])[:1]}),
    )
    parts = [(0, 5, 6), (1, 3, 5), (2, 0, 1)], [(1, 5, 7), (1, 7, 8)]
    mine, tables = parts[rank], ([2, 3, 4, 0], [5, 6, 7, 8], [9, 0, 0, 0])
    slots = [int(one) for row in rows for one in next(iter(row.slots.values()))[row.cached :]]
    slots = [*slots[:3], slots[6], *slots[3:6], -1]
    ids = torch.tensor([last for _, first, last in mine for _ in range(first, last)])
    metadata = Part(
        block_table=torch.tensor([tables[row] for row, _, _ in mine]),
        seq_lens=torch.tensor([last for _, _, last in mine]),
        query_start_loc=torch.tensor([0, *accumulate(last - first for _, first, last in mine)]),
        slot_mapping=torch.tensor(slots),
    )
    positions = torch.tensor([at for _, first, last in mine for at in range(first, last)])
    given = VllmBatch(ids, positions, (metadata,), (3, 7), (len(mine), len(ids)))
    prompts = torch.tensor([False, True, True]).numpy()
    whole = Part(is_prefilling_np=prompts, input_ids=torch.arange(7), positions=torch.arange(7))
    return split(given, whole, Forward("prefill", rows), rank, 2), Forward("prefill", rows), pool


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_computes_parts_of_prompts_gets_what_they_imply(rank: int) -> None:
    batch, forward, pool = halved(rank)
    right = batch.expected(forward)
    for static in batch.inputs(forward):
        if static.name in right:
            assert torch.equal(static.tensor[: static.live], right[static.name]), static.name
    mine, every = batch.places(forward)
    assert mine == [[0, 1, 2, 6], [3, 4, 5]][rank]
    assert every == [("a", 5), *(("b", at) for at in range(3, 8)), ("c", 0)]

    def wrong() -> list[list[str]]:
        found = list[list[str]]()
        for given in batch.lists(pool, "blocks", forward):
            lines = given.entries.view(3, -1).tolist()
            counts = given.counts.tolist()
            pairs = zip(forward.rows, lines, counts, strict=True)
            right = {row.request: row.slots["blocks"].tolist() for row in forward.rows}
            held = {row.request: [*line[:n], *[-1] * (n - len(line))] for row, line, n in pairs}
            found.append([name for name in right if held[name] != right[name]])
        return found

    assert wrong() == [[], []]
    batch.metadata[0].block_table[1, 0] = 3
    assert wrong() == [[["b"], ["b"]], [[], ["b"]]][rank]
    batch.metadata[0].seq_lens[0] += 1
    assert wrong()[0] == [["a", "b"], ["b"]][rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_lists_the_slots_of_its_own_part_of_each_context(rank: int) -> None:
    batch, forward, pool = shared(rank)
    (given,) = batch.lists(pool, "blocks", forward)
    assert given.counts.tolist() == [5, 0, 0]
    listed = given.entries[: given.counts[0]].tolist()
    assert listed == [[4, -1, 5, -1, 6], [-1, 4, -1, 5, -1]][rank]
    assert wrong_lengths(batch, forward) == []
    right = batch.expected(forward)
    for static in batch.inputs(forward):
        if static.name in right and static.name != "positions":
            assert torch.equal(static.tensor[: static.live], right[static.name]), static.name
    batch.metadata[0].dcp_context_kv_lens[:] = torch.tensor([5, 0, 1])  # Of the whole context.
    assert batch.lists(pool, "blocks", forward)[0].counts.tolist() == [9 + rank, 0, 1 + rank]
    ((base, implied),) = wrong_lengths(batch, forward)
    assert implied is not None
    assert base.rows is not None
    assert (base.name, implied[base.name].tolist()) == ("dcp_context_kv_lens 0", [5, 0])
    assert [row.cached for row in base.rows] == [9 + rank, 0]
    assert base.rows[1] is forward.rows[1]
    wrong = [one for one in batch.tails(forward) if not same(one.tensor, one.expected)]
    assert [one.name for one in wrong] == ["dcp_context_kv_lens 0 (padding)"]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_rows_are_cut_at_the_edges_of_chunks(size: int) -> None:
    spans = [(0, 9), (5, 1), (6, 7), (8, 4)]
    right = list[list[int]]()
    for row, (cached, computed) in enumerate(spans):
        for at in range(cached, cached + computed):
            if at in (cached, at // size * size):
                right.append([row, at, at])
            right[-1][2] += 1
    assert in_chunks(spans, size) == [tuple(one) for one in right]
    assert in_chunks(spans, None) == [(at, n, n + more) for at, (n, more) in enumerate(spans)]


def chunked(apart: bool) -> tuple[VllmBatch, Forward, VllmPool]:
    """Return a batch of a prompt of 6 tokens after 5, and of a decoding request.

    Some layers have chunks of 4 positions, whose rows are the parts of the prompt, and the request.
    If they have a group of their own, it is the first one.
    """
    given = [(5, 6, [2, 3, 4, 5, 6, 7]), (9, 1, [9, 10, 11, 12, 13, 0])]
    views = View(int(apart)), View(0, chunks=Chunks(4))
    views = views[::-1] if apart else views
    targets = tuple(EngineGroup(at, None, "") for at in range(1 + apart))
    pool = VllmPool((), 2, targets, views=views)
    rows = [
        Row(name, [*range(cached + n)], cached, n, {"blocks": pool.slots(blocks)[: cached + n]})
        for name, (cached, n, blocks) in zip("ab", given, strict=True)
    ]
    rows = [*(replace(row, window=Chunks(4)) for row in rows if apart), *rows]
    slots = torch.cat([row.slots["blocks"][row.cached :] for row in rows[:2]])
    whole = Part(
        block_table=torch.tensor([blocks for _, _, blocks in given]),
        seq_lens=torch.tensor([11, 10]),
        query_start_loc=torch.tensor([0, 6, 7]),
        slot_mapping=slots,
    )
    cut = Part(
        block_table=torch.tensor([[4, 5], [6, 7], [13, 0]]),
        seq_lens=torch.tensor([4, 3, 2]),
        query_start_loc=torch.tensor([0, 3, 6, 7]),
        slot_mapping=slots.clone(),
    )
    positions = torch.tensor([*range(5, 11), 9])
    metadata = (cut, whole) if apart else (whole, cut)
    batch = VllmBatch(positions, positions, metadata, (2, 7), (2, 7), views=views)
    return batch, Forward("prefill", tuple(rows), repeats=1 + apart), pool


def wrong_with_chunks(apart: bool, change: Callable[[Any], Any] | None = None) -> set[str]:
    """Return the inputs that are wrong, and the lists of which requests, after a change."""
    batch, forward, pool = chunked(apart)
    if change is not None:
        change(batch.metadata[not apart])
    right, found = batch.expected(forward), set[str]()
    for static in batch.inputs(forward):
        expected = right.get(static.name)
        if expected is not None and not same(static.tensor[: static.live], expected):
            found.add(static.name.replace("0", "1") if apart else static.name)
    ledger: Any = Part(group=Group("blocks", ()), slots=0)
    for given in batch.lists(pool, "blocks", forward):
        lists: Any = Part(given=given, forward=forward, ledger=ledger, number=1)
        parts = [*zip(given.offsets.tolist(), given.counts.tolist(), strict=True)]
        for row, (offset, count) in zip(forward.rows, parts, strict=True):
            if fault(lists, row, given.entries.numpy(), offset, count) is not None:
                found.add(row.request)
    return found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (None, set[str]()),
        (lambda one: one.block_table[1].add_(-2), {"a"}),  # The first chunk twice.
        (lambda one: one.block_table[2, :1].fill_(11), {"b"}),
        (lambda one: one.seq_lens[1].add_(-1), {"a", "seq_lens 1"}),
        (lambda one: one.seq_lens[0].add_(-1), {"seq_lens 1"}),
        (lambda one: one.seq_lens.resize_(2), {"b", "seq_lens 1"}),
        (lambda one: one.query_start_loc[1].add_(1), {"query_start_loc 1"}),
        (lambda one: one.slot_mapping[4].add_(1), {"slot_mapping 1"}),
    ],
)
def test_a_query_in_chunks_reads_the_slots_from_its_chunk_on(
    apart: bool, change: Callable[[Any], Any] | None, found: set[str]
) -> None:
    assert wrong_with_chunks(apart, change) == found


def test_a_slot_to_write_is_in_the_chunk_of_its_token() -> None:
    """If the blocks of a part are wrong, so are the slots that follow from them."""
    batch, forward, _ = chunked(apart=False)
    batch.metadata[1].block_table[1, 0] = 8
    batch.metadata[1].slot_mapping[3:5] += 4
    slots = [[row.slots["blocks"] for row in forward.rows]]
    ((base, implied),) = bases_of(batch, forward, None, slots, 2)
    assert base.name == "block_table"
    assert implied is not None
    assert torch.equal(implied["slot_mapping 1"], batch.metadata[1].slot_mapping)


# A whole engine of stand-ins.


def prefilled(served: Served) -> Served:
    """Return an engine after it has computed a prompt of six tokens for request a."""
    served.scheduler.requests["a"] = a_request(*range(10, 20))
    said = output({"a": 6}, new={"a": ([1, 2], [3, 4])})
    served.run(said, [[1, 2], [3, 4]], 0, list(range(10, 16)))
    return served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An engine that has computed a prompt of six tokens for request a."""
    served = prefilled(Served(tmp_path))
    yield served
    served.journal.end()


def test_a_right_engine_has_no_finding(served: Served) -> None:
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == set()
    assert served.journal.counts["reads"] == 6 + 3


@pytest.mark.parametrize(
    ("table", "tokens", "check"),
    [
        ([[5, 2], [3, 4]], [16], "wrong list"),  # Of all positions.
        ([[1, 2], [5, 4]], [16], "wrong list"),  # Of the window, which begins in block 0.
        ([[1, 2], [3, 5]], [16], "stale input"),  # The slot to write.
        ([[1, 2], [3, 4]], [17], "stale input"),  # The token.
    ],
)
def test_what_a_worker_gives_to_its_kernels_is_compared_with_the_scheduler(
    served: Served, table: list[list[int]], tokens: list[int], check: str
) -> None:
    served.run(DECODE, table, 6, tokens)
    assert check in served.found()


def add(served: Served, name: str) -> None:
    """Add one to an input of the sliding group, or of the model."""
    owner = served.metadata["slid"] if hasattr(served.metadata["slid"], name) else served.runner
    getattr(owner, name)[0] += 1


def test_each_runner_keeps_what_it_takes_for_computed_in_another_order() -> None:
    held = torch.tensor([5, 6, 7])
    older, newer = Part(num_computed_tokens=held), Part(gpu=held)
    newer = Part(req_states=Part(num_computed_tokens=newer))
    mapped = Part(idx_mapping=torch.tensor([2, 0, -1]))
    counts = counts_of(older, None, 2), counts_of(newer, mapped, 2)
    assert [one is not None and one.tolist() for one in counts] == [[5, 6], [7, 5]]
    assert counts_of(newer, None, 2) is counts_of(older, mapped, 2) is None


@pytest.mark.parametrize("decodes", [0, 1])
def test_compressed_kv_has_the_lengths_of_contexts_in_parts(decodes: int) -> None:
    starts, contexts = (
        torch.tensor([0, 2, 5, 6]),
        [(slice(0, 2), [0, 4, 7]), (slice(1, 3), [0, 1, 9])],
    )
    chunks = [Part(request_slice=rows, cu_seq_lens=torch.tensor(ends)) for rows, ends in contexts]
    table, lengths = torch.arange(8).view(4, 2), torch.tensor([6, 6, 7, 9])
    held = Part(
        decode=Part(block_table=table[:1], seq_lens=lengths[:1]) if decodes else None,
        prefill=Part(
            block_table=table[1:],
            query_start_loc=starts,
            chunked_context=Part(chunks=chunks),
        ),
        query_start_loc=starts,
        slot_mapping=table,
        num_actual_tokens=6,
    )
    found = Compressed(held)
    assert torch.equal(found.seq_lens, lengths[1 - decodes :])
    assert torch.equal(found.block_table, table[1 - decodes :])
    held.prefill = None
    if decodes:
        assert Compressed(held).seq_lens is held.decode.seq_lens


class MLAAttentionSpec(Part):
    """A group of compressed KV."""


class KeysIndexerCache(Part):
    """The layer of an indexer."""


@pytest.mark.parametrize(("byte", "slot"), [(0, 4), (11, 7), (12, 4), (27, 7)])
def test_the_bytes_of_a_slot_are_also_those_of_an_indexer(byte: int, slot: int) -> None:
    cache, keys = torch.zeros(BLOCKS, 4, 2), torch.zeros(BLOCKS, 4, 3 + 4, dtype=torch.uint8)
    layers = {"keys": KeysIndexerCache(kv_cache=keys), "full": Part(kv_cache=cache)}
    spec = Part(kv_cache_specs=dict.fromkeys(layers, MLAAttentionSpec(block_size=4)))
    group = Part(layer_names=[*layers], kv_cache_spec=spec)
    pool = described(Part(kv_cache_groups=[group], num_blocks=BLOCKS), layers)
    assert [one.layer for one in pool.targets] == ["full"]  # Its metadata have all parts.
    sums = Checksums(pool.groups[0])
    before = sums.all()
    keys.view(BLOCKS, -1)[1, byte] = 1  # Keys of a block come before their scales.
    cache[0, 1] = 1
    assert (sums.all() != before).nonzero().flatten().tolist() == [1, slot]


@pytest.mark.parametrize(("apart", "windows"), [(True, [None, Chunks(8)]), (False, [None])])
def test_layers_with_chunks_have_a_view_of_their_own(
    apart: bool, windows: list[Chunks | None]
) -> None:
    """They may have a group of their own, or be in the only group."""
    config, layers, _ = a_pool()
    layers["slid"].attention_chunk_size = 8
    if not apart:
        layers["full"].kv_cache = torch.zeros(BLOCKS, 4, 2)
    names = [["full"], ["slid"]] if apart else [["slid", "full"]]
    specs = GROUPS[0].kv_cache_spec, ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=8)
    config.kv_cache_groups = [
        Part(layer_names=mine, kv_cache_spec=spec) for mine, spec in zip(names, specs, strict=False)
    ]
    pool = described(config, layers)
    assert [one.window for one in pool.targets] == windows
    assert pool.views == (View(0, "full"), View(int(apart), "slid", Chunks(8)))
    of_layers = [layer.window for group in pool.groups for layer in group.layers]
    assert of_layers == ([None] if apart else [Chunks(8), None])


def test_layers_with_several_tokens_together_are_not_recognised() -> None:
    config, layers, _ = a_pool()
    spec = type(GROUPS[0].kv_cache_spec)(block_size=4, tokens_per_state=4)
    config.kv_cache_groups = [Part(layer_names=["full"], kv_cache_spec=spec)]
    with pytest.raises(NotRecognisedError, match="several tokens"):
        described(config, layers)


class ChunkedLocalAttentionSpec(Part):
    """A group with chunks."""


class SparseIndexerMetadata(Part):
    """The metadata of an indexer."""


def wrong_of_indexer(name: str | None, tokens: int = 1, **more: Any) -> list[str]:
    """Return what is wrong of one decoding request and two prompts, with one wrong value.

    The first has so many `tokens`, all but one of them drafts. The batch has `more` fields.
    """
    spans = ((5, tokens), (3, 2), (0, 3))
    rows = [
        Row(str(at), [1] * (cached + n), cached, n, {"blocks": torch.arange(cached + n) + 8 * at})
        for at, (cached, n) in enumerate(spans)
    ]
    slots = torch.tensor([*range(5, 5 + tokens), 11, 12, 16, 17, 18])
    table, size = torch.arange(6).view(3, 2), len(slots)
    held = {
        "slot_mapping": slots.clone(),
        "seq_lens": torch.tensor([*range(6, 6 + tokens), 0])[:, None],
        "block_table": table[:1].repeat(tokens, 1),
        "cu_seqlen_ks": torch.tensor([0, 5, 5, 5]),
        "cu_seqlen_ke": torch.tensor([5, 6, 7, 8]),
        "blocks of prompts": table[1:].clone(),
        "cu_seq_lens": torch.tensor([0, 5, 8]),
        "token_to_seq": torch.tensor([0] * 5 + [1] * 3),
        "total_seq_lens": torch.tensor([8]),
        "max_seqlen_k": torch.tensor([5]),
        "skip_kv_gather": torch.tensor([0]),
        "token_start": torch.tensor([size - 4]),
    }
    if name is not None:
        at = min(tokens, held[name].numel()) - 1
        held[name].view(-1)[at] += -1 if name == "max_seqlen_k" else 1
    parts = {one: held[one] for one in ("cu_seqlen_ks", "cu_seqlen_ke", "cu_seq_lens")}
    parts |= {"block_table": held["blocks of prompts"], "token_to_seq": held["token_to_seq"]}
    sizes = ("total_seq_lens", "max_seqlen_k", "token_start")
    numbers = {one: int(held[one]) for one in sizes}
    reused = bool(held["skip_kv_gather"])
    prompts = Part(token_end=size, skip_kv_gather=reused, **parts, **numbers)
    first = Part(
        token_start=size - 5,
        token_end=size - 4,
        cu_seqlen_ks=torch.tensor([0]),
        cu_seqlen_ke=torch.tensor([4]),
        block_table=table[1:2],
        cu_seq_lens=torch.tensor([0, 5]),
        token_to_seq=torch.tensor([0] * 5),
        total_seq_lens=5,
        max_seqlen_k=9,
    )
    metadata = SparseIndexerMetadata(
        slot_mapping=held["slot_mapping"],
        num_decodes=1,
        num_decode_tokens=tokens,
        decode=Part(seq_lens=held["seq_lens"], block_table=held["block_table"]),
        prefill=Part(chunks=[first, prompts]),
    )
    batch = VllmBatch(slots, slots, (Part(block_table=table),), (3, size), (3, size), **more)
    given = of_indexer(batch, {"keys": metadata}, Forward("mixed", tuple(rows)), tokens > 1)
    return [one.name for one in given if not same(one.tensor, one.expected)]


def test_an_indexer_gets_the_keys_of_each_query() -> None:
    """The second chunk of its prompts begins with the second token of the first prompt.

    The bound of the longest prompt may be larger than it. Keys of other prompts are gathered anew.
    """
    assert wrong_of_indexer(None) == []
    for name in ("slot_mapping", "seq_lens", "cu_seqlen_ks", "cu_seqlen_ke", "block_table"):
        assert wrong_of_indexer(name) == [f"{name} of the indexer"]
    for name in ("cu_seq_lens", "token_to_seq"):
        assert wrong_of_indexer(name) == [f"{name} of the indexer"]
    for name in ("total_seq_lens", "max_seqlen_k", "skip_kv_gather"):
        assert wrong_of_indexer(name) == ["sizes of the indexer's keys"]
    assert "chunks of the indexer" in wrong_of_indexer("token_start")
    assert wrong_of_indexer("blocks of prompts") == ["block_table of the indexer"]
    assert wrong_of_indexer(None, tokens=3) == []
    assert wrong_of_indexer("total_seq_lens", tokens=3) == []  # With drafts, it is a bound.
    assert wrong_of_indexer("seq_lens", tokens=3) == ["seq_lens of the indexer"]
    with pytest.raises(NotRecognisedError, match="context parallelism"):
        wrong_of_indexer(None, share=Share(0, 2))


@pytest.mark.parametrize(("counts", "known"), [([5, 2], True), ([6, 2], None), ([8, 2], False)])
def test_a_wrong_count_implies_the_slots_of_its_own_request(
    counts: list[int], known: bool | None
) -> None:
    """The others may have fewer. Beyond its slots, nothing is known."""
    slots = torch.arange(8, 16), torch.arange(40, 44)
    forward = Forward("decode", (Row("a", [1] * 7, 6, 1, {"blocks": slots[0][:7]}),
                                 Row("b", [1] * 3, 2, 1, {"blocks": slots[1][:3]})))  # fmt: skip
    held = torch.tensor([slots[0][counts[0]] if known else 14, 42])
    metadata = Part(slot_mapping=held, block_table=torch.tensor([[2, 3], [10, 0]]))
    positions = torch.tensor(counts)
    batch = VllmBatch(positions, positions, (metadata,), (2, 2), (2, 2))
    found = bases_of(batch, forward, torch.tensor(counts), [slots], 4)
    if known is None:
        assert found == []
        return
    (base, implied), *_ = found
    assert (base.name, base.rows is not None) == ("num_computed_tokens", known)
    assert (implied is not None and torch.equal(implied["slot_mapping 0"], held)) == known


@pytest.mark.parametrize(
    ("table", "more", "causes"),
    [
        ([[1, 2], [3, 4]], {"counted": 5}, {"num_computed_tokens"}),
        ([[1, 2], [3, 4]], {"counted": 3}, {"num_computed_tokens"}),
        ([[1, 2], [3, 5]], {}, {"the list block_table"}),
        # These are wrong themselves.
        ([[1, 2], [3, 4]], {"change": lambda one: add(one, "slot_mapping")}, {"slot_mapping 1"}),
        ([[1, 2], [3, 4]], {"change": lambda one: add(one, "seq_lens")}, {"seq_lens 1"}),
        ([[1, 2], [3, 4]], {"change": lambda one: add(one, "positions")}, {"positions"}),
        # The slot follows from both.
        ([[1, 2], [3, 5]], {"counted": 5},
         {"num_computed_tokens", "the list block_table", None}),
        # It would follow from the count, and is wrong itself.
        ([[1, 2], [3, 4]], {"counted": 4, "change": lambda one: add(one, "slot_mapping")},
         {"num_computed_tokens", "slot_mapping 1"}),
    ],
)  # fmt: skip
def test_the_cause_is_the_input_from_which_the_wrong_ones_are_made(
    served: Served, table: list[list[int]], more: dict[str, Any], causes: set[str | None]
) -> None:
    """An input that agrees with a wrong one is not to blame."""
    served.run(DECODE, table, 6, [16], **more)
    assert served.causes() == causes


@pytest.mark.parametrize(
    ("written", "copied", "found"),
    [(6, True, set[str]()), (3, True, {"stray write"}), (6, False, {"stale input"})],
)
def test_a_state_is_copied_to_the_last_block_of_its_group(
    tmp_path: Path, written: int, copied: bool, found: set[str]
) -> None:
    served = Served(tmp_path, state=5)
    served.scheduler.requests["a"] = a_request(*range(10, 20))
    said = output({"a": 8}, new={"a": ([1, 2], [3, 4], [0, 5])})
    served.run(said, [[1, 2], [3, 4]], 0, [*range(10, 18)])
    served.state, served.kernel = written, 6
    if copied:
        served.cache[6] = served.cache[5]
    more = output({"a": 1}, cached={"a": (8, ([7], [8], [6]))})
    served.run(more, [[1, 2, 7], [3, 4, 8]], 8, [18])
    assert served.found() == found
    served.journal.end()


@pytest.mark.parametrize(
    ("cached", "tokens", "kernel", "goes_on", "found"),
    [
        (0, PROMPT, 5, None, set[str]()),
        (0, PROMPT, 5, True, {"stale input"}),  # From a state of an earlier owner.
        (4, PROMPT[4:], 5, False, {"stale input"}),
        (0, PROMPT, 6, None, {"stale input"}),
        (5, PROMPT[5:], 6, None, {"stale input"}),
        (4, PROMPT[4:], 5, None, {"stale input"}),  # No forward has computed that state.
        (0, PROMPT[:1], 5, None, {"stale input"}),  # A decoding row goes on from a state.
    ],
)
def test_kernels_get_the_state_of_each_row(
    tmp_path: Path,
    cached: int,
    tokens: list[int],
    kernel: int,
    goes_on: bool | None,
    found: set[str],
) -> None:
    served = Served(tmp_path, state=5)
    served.kernel, served.goes_on = kernel, goes_on
    served.scheduler.requests["a"] = a_request(*PROMPT)
    new = {"a": ([1, 2], [3, 4], [0, 5] if cached + len(tokens) > 4 else [5])}
    served.run(output({"a": len(tokens)}, new=new, hit=cached), [[1, 2], [3, 4]], cached, tokens)
    assert served.found() - {"uninitialised read"} == found
    served.journal.end()


@pytest.mark.parametrize(
    ("known", "most", "other", "found"),
    [
        (4, 10, False, set[str]()),
        (3, 10, False, set[str]()),  # The host learns the last token after the forward.
        (4, 0, False, set[str]()),  # The state was forgotten.
        (4, 10, True, {"stale input"}),
        (3, 10, True, {"stale input"}),
        (4, 0, True, {"stale input"}),
    ],
)
def test_a_prompt_goes_on_from_a_state_that_may_have_been_computed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: int,
    most: int,
    other: bool,
    found: set[str],
) -> None:
    """The prompt starts with the same tokens, or with `other` ones."""
    monkeypatch.setattr(kept_states, "MOST", most)
    served = Served(tmp_path, state=5)
    served.scheduler.requests["a"] = a_request(*PROMPT[:known])
    new = {"a": ([1, 2], [3, 4], [5])}
    served.run(output({"a": 4}, new=new), [[1, 2], [3, 4]], 0, PROMPT[:4])
    served.state = served.kernel = 8
    served.cache[8] = served.cache[5]
    served.scheduler.requests["b"] = a_request(PROMPT[0] + other, *PROMPT[1:])
    new = {"b": ([1, 9], [3, 10], [0, 8])}
    said = output({"b": 2}, new=new, hit=4)
    served.run(said, [[1, 9], [3, 10]], 4, PROMPT[4:], name="b")
    assert served.found() - {"wrong owner"} == found
    served.journal.end()


def test_a_resumed_prompt_goes_on_from_the_state_of_another_one(tmp_path: Path) -> None:
    """Its state has other bits than that after its own last forward."""
    served = Served(tmp_path, state=5)
    served.scheduler.requests |= {name: a_request(*PROMPT) for name in "ab"}
    new = {"a": ([1, 2], [3, 4], [5])}
    served.run(output({"a": 4}, new=new), [[1, 2], [3, 4]], 0, PROMPT[:4])
    served.state = served.kernel = 8
    new = {"b": ([6, 7], [9, 10], [8])}
    served.run(output({"b": 4}, new=new), [[6, 7], [9, 10]], 0, PROMPT[:4], name="b")
    served.state = served.kernel = 13
    served.cache[13] = served.cache[8]
    again = {"a": (4, ([6, 11], [9, 12], [0, 13]))}
    said = output({"a": 2}, cached=again, resumed=("a",))
    served.run(said, [[6, 11], [9, 12]], 4, PROMPT[4:])
    assert served.found() == set()
    served.journal.end()


def test_a_state_need_not_be_computed_with_a_connector(tmp_path: Path) -> None:
    served = Served(tmp_path, state=5)
    given = Part(kv_connector="OffloadingConnector", kv_connector_extra_config={})
    served.runner.vllm_config.kv_transfer_config = given
    served.scheduler.requests["a"] = a_request(*PROMPT)
    said = output({"a": 2}, new={"a": ([1, 2], [3, 4], [0, 5])}, hit=4)
    served.run(said, [[1, 2], [3, 4]], 4, PROMPT[4:])
    assert "stale input" not in served.found()
    settings = [one["settings"] for one in lines_in(tmp_path) if one["kind"] == "scope"]
    assert {"states_not_watched": "which ones a KV connector may load"} in settings
    served.journal.end()


@pytest.mark.parametrize(
    ("target", "kept", "found"),
    [(5, 5, set[str]()), (7, 5, {"stale input"}), (5, 4, {"stale input"})],
)
def test_a_prompt_leaves_a_state_for_those_that_share_its_first_tokens(
    tmp_path: Path, target: int, kept: int, found: set[str]
) -> None:
    """The state after four tokens is in the block before the last one, which another prompt gets.

    Kernels may get another `target`. Another block, which is `kept`, has no state.
    """
    served = Served(tmp_path, state=6)
    served.scheduler.requests |= {name: a_request(*range(10, 17)) for name in "ab"}
    inside = Part(offsets=[4], state_indices=torch.tensor([target]))

    def leaves(one: Served) -> None:
        one.metadata["conv"].checkpoint_meta = inside

    more: Any = {"change": leaves, "copies": {"after": served.cache[5].uniform_}}
    new = {"a": ([1, 2], [3, 4], [5, 6])}
    served.run(output({"a": 7}, new=new), [[1, 2], [3, 4]], 0, [*range(10, 17)], **more)
    served.state = served.kernel = 8
    served.cache[8] = served.cache[kept]
    new = {"b": ([1, 9], [3, 10], [0, 8])}
    tokens = [*range(14, 17)]
    served.run(output({"b": 3}, new=new, hit=4), [[1, 9], [3, 10]], 4, tokens, name="b")
    assert served.found() == found
    served.journal.end()


@pytest.mark.parametrize(
    ("cached", "computed", "column"),
    [(0, 7, 0), (0, 4, None), (4, 5, 1), (4, 9, 2), (3, 1, None)],
)
def test_a_state_inside_of_a_prompt_has_a_block_that_no_state_has_yet(
    cached: int, computed: int, column: int | None
) -> None:
    assert column_inside(cached, computed, 4) == column


@pytest.mark.parametrize("apart", [False, True])
def test_a_block_that_is_freed_in_use_is_found(tmp_path: Path, apart: bool) -> None:
    served = prefilled(Served(tmp_path, apart=apart))
    queue = served.scheduler.kv_cache_manager.block_pool.free_block_queue
    hooked(served.core.frees, lambda *_: None, queue, [served.blocks[1]])
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == {"freed in use"}
    served.journal.end()


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_known_is_lost_if_a_hook_of_the_scheduler_fails(
    tmp_path: Path, apart: bool
) -> None:
    served = prefilled(Served(tmp_path, apart=apart))
    served.cache[1] = 7.0
    served.core.journal.lose()
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == set()
    served.journal.end()


@pytest.mark.parametrize(("block", "found"), [(0, set()), (2, {"stray write"})])
def test_a_batch_of_an_idle_rank_writes_reserved_slots_only(
    served: Served, block: int, found: set[str]
) -> None:
    def computed(worker: Part) -> None:
        served.cache[block] = 7.0

    hooked(served.engine.dummy, computed, Part(model_runner=served.runner))
    assert served.found() == found


def test_a_forward_of_several_ranks_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Part(_TP=Part(rank_in_group=1, world_size=2), _PP=Part(rank_in_group=0, world_size=1))
    monkeypatch.setitem(sys.modules, RANKS, cast("Any", ranks))
    served = prefilled(Served(tmp_path))
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.replay(Part(runtime_mode=Part(name="FULL"), hidden_states=torch.zeros(1, 2)))
    assert served.found() == set()
    assert served.engine.rank() == {"tp": (1, 2)}
    assert served.journal.counts[f"not tried: unrepeatable replay: {TOGETHER}"] == 1
    served.journal.end()


@pytest.mark.parametrize("size", [2, 4])
def test_tensor_parallel_ranks_that_share_contexts_differ_along_two_axes(
    served: Served, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    parts = Part(rank_in_group=1, world_size=2)
    ranks = Part(_TP=Part(rank_in_group=size - 1, world_size=size), _DCP=parts)
    monkeypatch.setitem(sys.modules, RANKS, cast("Any", ranks))
    found = {"dcp": (1, 2), "tp": (1, 2)}
    assert served.engine.rank() == (found if size == 4 else {"dcp": (1, 2)})


def test_a_data_parallel_engine_of_a_dense_model_has_a_rank_and_replays_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command notes the number of engines, since each of them takes itself for the only one."""
    monkeypatch.setenv(ENGINES, "1")
    served = prefilled(Served(tmp_path))
    served.runner.vllm_config.parallel_config.data_parallel_index = 1
    assert served.engine.rank() == {}
    whole = Part(parallel_config=Part(data_parallel_size=2))

    def start(manager: Part, *, vllm_config: Part) -> None:
        assert os.environ[ENGINES] == str(vllm_config.parallel_config.data_parallel_size)

    hooked(served.engine.launched, start, Part(), vllm_config=whole)
    assert served.engine.rank() == {"dp": (1, 0)}
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.replay(Part(runtime_mode=Part(name="FULL"), hidden_states=torch.zeros(1, 2)))
    assert f"not tried: unrepeatable replay: {TOGETHER}" not in served.journal.counts
    served.journal.end()


@pytest.mark.parametrize("passed", [True, False])
def test_a_stage_reports_what_its_model_gets_and_returns(tmp_path: Path, passed: bool) -> None:
    """The newer runner passes nothing to a graph of the whole model, which has fixed inputs."""
    served = Served(tmp_path)
    served.engine.settings = Settings(str(tmp_path), None, 1, key="secret")
    served.engine.rank = lambda: {"pp": (1, 3)}  # type: ignore[method-assign]
    states = torch.randn(8, 4)
    got, other = (Part(tensors={"hidden_states": one}) for one in (states, torch.randn(8, 4)))
    served.received = got if passed else None
    served.runner.intermediate_tensors = other if passed else got
    served.sent = Part(tensors={"hidden_states": states * 2})
    prefilled(served)
    served.journal.end()
    lines = [one["given"] for one in lines_in(tmp_path) if one["kind"] == "digests"]
    ((*_, exchanged),) = lines[0]
    assert set(exchanged) == {"received", "sent"}
    assert [len(rows) for rows in exchanged["received"]["hidden_states"]] == [6]
    again = Digests(served.journal, "secret", {"pp": (1, 3)})
    forward = Forward("prefill", (Row("a", [1] * 6, 0, 6, {}),))
    again.exchange("received", forward, got.tensors, 6)
    for name, one in again.exchanged["received"].items():
        assert again.hashes(1, one) == exchanged["received"][name]


@pytest.mark.parametrize("apart", [False, True])
def test_an_error_of_a_worker_is_judged_there_if_the_loop_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    judged = list[Exception]()
    judge = "paritybit.connectors.vllm.engine.judge"
    monkeypatch.setattr(judge, lambda error, *_: judged.append(error))
    served = Served(tmp_path, apart=apart)

    def fails(runner: Part) -> None:
        raise IndexError

    with pytest.raises(IndexError):
        hooked(served.engine.raised, fails, served.runner)
    assert len(judged) == apart
    served.journal.end()


def test_a_scheduler_of_which_nothing_is_known_leaves_no_verdict(tmp_path: Path) -> None:
    served = Served(tmp_path)
    for _ in range(WARM_UP + 1):
        hooked(served.engine.execute, lambda *_: None, served.runner, output({"a": 1}))
    served.journal.end()
    assert any("tells nothing" in line.get("what", "") for line in lines_in(tmp_path))


def test_a_block_that_is_freed_twice_is_found(served: Served) -> None:
    queue = served.scheduler.kv_cache_manager.block_pool.free_block_queue
    for _ in range(2):
        hooked(served.engine.frees, lambda *_: None, queue, [served.blocks[1]])
    assert served.found() == {"double free"}
    hooked(served.engine.takes, lambda *_: [served.blocks[1]], queue, 1)
    hooked(served.engine.frees, lambda *_: None, queue, served.blocks[1])
    served.journal.findings.clear()


def test_a_block_that_nobody_has_is_a_leak(served: Served) -> None:
    served.scheduler.requests.clear()
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == set()
    served.free.remove(served.blocks[2])
    served.engine.forwards += 1
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == {"leak"}


@pytest.mark.parametrize(
    ("chunk", "found"), [(0, set()), (1, {"wrong owner", "uninitialised read"})]
)
def test_kv_from_the_host_is_that_of_the_block_that_was_copied_there(
    served: Served, chunk: int, found: set[str]
) -> None:
    kept = torch.zeros(8, *served.cache.shape[1:])
    for stores, blocks, chunks in ((True, [1, 2, 3], [0, 1, 2]), (False, [5, 6], [chunk, 2])):
        handler = Part(gpu_to_cpu=stores, dst_tensors=[kept], src_tensors=[kept])
        device = Part(block_ids=np.array(blocks), group_sizes=(len(blocks) - 1, 1))
        host = Part(block_ids=np.array(chunks))
        if stores:
            kept[chunks] = served.cache[blocks]
        else:
            served.cache[blocks] = kept[chunks]
        ends = (device, host) if stores else (host, device)
        hooked(served.engine.transfer, lambda *_: True, handler, 7, *ends)
    again = output({"b": 1}, new={"b": ([5, 7], [6, 8])}, hit=4)
    served.scheduler.requests["b"] = a_request(*range(10, 15))
    served.run(again, [[5, 7], [6, 8]], 4, [14], "b")
    assert served.found() == found


@pytest.mark.parametrize(("when", "found"), [("after", set()), ("before", {"uninitialised read"})])
def test_what_a_forward_copies_to_the_host_after_the_model_has_what_it_wrote(
    served: Served, when: str, found: set[str]
) -> None:
    kept = torch.zeros(4, *served.cache.shape[1:])
    chunks, blocks, others = [0, 1, 2, 3], [1, 2, 3, 4], [5, 6, 7, 8]
    backend = Part(_store_params="stores")
    served.engine.backend = backend

    def store(*_: Any, **__: Any) -> None:
        kept[chunks] = served.cache[blocks]

    def stores() -> None:
        hooked(served.engine.copies_blocks, store, blocks, chunks, "stores")

    def load(*_: Any, **__: Any) -> None:
        served.cache[others] = kept[chunks]

    served.run(DECODE, [[1, 2], [3, 4]], 6, [16], copies={when: stores})
    hooked(served.engine.copies_blocks, load, chunks, others, "loads")
    served.scheduler.requests["b"] = a_request(*range(10, 20))
    again = output({"b": 1}, new={"b": ([5, 6], [7, 8])}, hit=7)
    served.run(again, [[5, 6], [7, 8]], 7, [17], "b")
    assert served.found() == found


@pytest.mark.parametrize(
    ("connectors", "known"),
    [
        ({"OffloadingConnector": {"cpu_bytes_to_use": 1}}, True),
        ({"OffloadingConnector": {"block_size": 64}}, False),
        ({"OffloadingConnector": {"secondary_tiers": [{"type": "fs", "root_dir": "/"}]}}, True),
        ({"OffloadingConnector": {"secondary_tiers": [{"type": "p2p"}]}}, False),
        ({"LMCacheConnectorV1": {"lmcache.chunk_size": 32}}, True),
        ({"LMCacheConnectorV1": {"lmcache.remote_url": "lm://host"}}, False),
        ({"ExampleConnector": {"shared_storage_path": "/tmp"}}, True),
        ({"OffloadingConnector": {}, "SimpleCPUOffloadConnector": {"lazy_offload": True}}, True),
        ({"OffloadingConnector": {}, "ExampleConnector": {}}, False),
        ({"OffloadingConnector": {}, "NixlConnector": {}}, False),
    ],
)
def test_a_connector_is_followed_if_all_of_it_is_known(
    connectors: dict[str, dict[str, Any]], known: bool
) -> None:
    parts = [
        {"kv_connector": name, "kv_connector_extra_config": given}
        for name, given in connectors.items()
    ]
    if len(parts) > 1:
        extra = {"connectors": parts}
        parts = [{"kv_connector": "MultiConnector", "kv_connector_extra_config": extra}]
    assert unfollowed(Part(**parts[0])) == ([] if known else ["a KV connector"])
    apart = known and "secondary_tiers" not in str(parts)
    assert unfollowed(Part(**parts[0]), alone=False) == ([] if apart else ["a KV connector"])


def job(stores: bool, blocks: list[int], chunks: list[int]) -> Part:
    """Return a job of the offloading connector."""
    device = Part(block_ids=np.array(blocks), group_sizes=(len(blocks), 0))
    host = Part(block_ids=np.array(chunks))
    ends = (device, host) if stores else (host, device)
    return Part(req_id="a", src_spec=ends[0], dst_spec=ends[1])


@pytest.mark.parametrize("over", ["finishes", "waits", None])
@pytest.mark.parametrize("begins", ["stores", "submits"])
def test_a_block_that_the_engine_still_copies_is_not_written(
    served: Served, begins: str, over: str | None
) -> None:
    one, none = job(True, [1], [0]), lambda *_: None
    if begins == "stores":
        worker, metadata = Part(_is_store_writer=True), Part(store_jobs={7: one})
        hooked(served.engine.stores, none, worker, metadata)
    hooked(served.engine.submits, none, Part(), 7, one.src_spec, one.dst_spec)
    if over == "finishes":
        hooked(served.engine.finishes, lambda *_: [Part(job_id=7)], Part())
    elif over == "waits":
        hooked(served.engine.waits, none, Part(), {7})
    served.scheduler.requests["b"] = a_request(*range(10, 15))
    served.run(output({"b": 3}, new={"b": ([1], [6])}), [[1], [6]], 0, [10, 11, 12], "b")
    assert served.found() == (set() if over else {"copy under way"})


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("blocks", [[1, 3], [1, 5]])
def test_what_is_stored_of_a_request_is_its_own(
    served: Served, blocks: list[int], noted: bool
) -> None:
    one, handler = job(True, blocks, [0, 1]), Part(gpu_to_cpu=True)
    one.src_spec.group_sizes = (1, 1)
    if noted:
        hooked(served.engine.expects, lambda *_: None, Part(), Part(store_jobs={7: one}))
    hooked(served.engine.transfer, lambda *_: True, handler, 7, one.src_spec, one.dst_spec)
    assert served.found() == ({"uninitialised read"} if noted and 5 in blocks else set())


@pytest.mark.parametrize("over", [False, True])
def test_a_block_that_the_engine_still_loads_is_not_read(served: Served, over: bool) -> None:
    kept = torch.zeros(8, *served.cache.shape[1:])
    kept[[0, 1]] = served.cache[[1, 3]]
    handler = Part(gpu_to_cpu=True)
    stored = job(True, [1, 3], [0, 1])
    hooked(served.engine.transfer, lambda *_: True, handler, 7, stored.src_spec, stored.dst_spec)
    one = job(False, [5, 6], [0, 1])
    hooked(served.engine.loads, lambda *_: None, Part(), Part(load_jobs={8: one}))
    served.cache[[5, 6]] = kept[[0, 1]]
    handler = Part(gpu_to_cpu=False)
    hooked(served.engine.transfer, lambda *_: True, handler, 8, one.src_spec, one.dst_spec)
    if over:
        hooked(served.engine.finishes, lambda *_: [Part(job_id=8)], Part())
    served.scheduler.requests["b"] = a_request(*range(10, 15))
    again = output({"b": 1}, new={"b": ([5, 7], [6, 8])}, hit=4)
    served.run(again, [[5, 7], [6, 8]], 4, [14], "b")
    assert served.found() == (set() if over else {"copy under way"})


@pytest.mark.parametrize(
    ("failed", "again", "found"),
    [
        (None, False, set[str]()),
        ("a request", False, {"uninitialised read"}),
        ("a block", False, {"uninitialised read"}),
        ("a request", True, set[str]()),
    ],
)
def test_what_a_failed_load_should_have_brought_is_not_read(
    served: Served, failed: str | None, again: bool, found: set[str]
) -> None:
    kept = torch.zeros(8, *served.cache.shape[1:])
    kept[[0, 1]] = served.cache[[1, 3]]
    for number, one in ((7, job(True, [1, 3], [0, 1])), (8, job(False, [5, 6], [0, 1]))):
        if number == 8:
            hooked(served.engine.loads, lambda *_: None, Part(), Part(load_jobs={8: one}))
            served.cache[[5, 6]] = kept[[0, 1]]
        handler = Part(gpu_to_cpu=number == 7)
        ends = one.src_spec, one.dst_spec
        hooked(served.engine.transfer, lambda *_: True, handler, number, *ends)
        hooked(served.engine.finishes, lambda *_: [Part(job_id=number)], Part())  # noqa: B023
    if failed == "a request":
        hooked(served.engine.fails, lambda *_: None, served.scheduler, {"a"})
    elif failed == "a block":
        hooked(served.engine.fails, lambda *_: None, served.scheduler, {5})
    served.scheduler.requests["b"] = a_request(*range(10, 15))
    if again:
        served.run(output({"b": 4}, new={"b": ([5], [6])}), [[5], [6]], 0, [10, 11, 12, 13], "b")
        more = output({"b": 1}, cached={"b": (4, ([7], [8]))})
    else:
        more = output({"b": 1}, new={"b": ([5, 7], [6, 8])}, hit=4)
    served.run(more, [[5, 7], [6, 8]], 4, [14], "b")
    assert served.found() == found


@pytest.mark.parametrize("over", ["polls", "flushes", None])
@pytest.mark.parametrize("stores", [False, True])
def test_copies_of_the_simple_connector_end_when_the_engine_sees_it(
    served: Served, stores: bool, over: str | None
) -> None:
    none = lambda *_, **__: None  # noqa: E731
    events = {"_load_events": [(3, None)] * (not stores), "_store_events": [(3, None)] * stores}
    worker, ends = Part(**events), ([1], [0]) if stores else ([0], [1])
    hooked(served.engine.launches, none, Part(), *ends, is_store=stores, event_idx=3)
    if over == "polls":
        hooked(served.engine.polls, lambda *_: 2, worker, stores)
        hooked(served.engine.polls, lambda *_: 3, worker, stores)
    elif over == "flushes":
        hooked(served.engine.flushes, none, worker)
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == (set() if over or stores else {"copy under way"})
    served.scheduler.requests["b"] = a_request(*range(10, 15))
    served.run(output({"b": 3}, new={"b": ([1], [6])}), [[1], [6]], 0, [10, 11, 12], "b")
    assert served.found() == (set() if over else {"copy under way"})


@pytest.mark.parametrize("waits", [None, "an event"])
@pytest.mark.parametrize("known", [False, True])
def test_a_copy_waits_for_a_step_whose_result_the_engine_does_not_have(
    served: Served, waits: str | None, known: bool
) -> None:
    served.engine.backend = backend = Part()
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    if known:
        hooked(served.engine.updates, lambda *_: None, served.scheduler, DECODE)
    copy: tuple[Any, ...] = [2], [0], True, 3, [], waits
    begin = lambda *_: hooked(served.engine.launches, lambda *_: None, backend, *copy)  # noqa: E731
    hooked(served.engine.execute, begin, served.runner, served.tell(output({})))
    assert served.found() == (set() if known or waits else {"copy under way"})


@pytest.mark.parametrize(
    ("stored", "tokens", "loads", "found"),
    [
        ([1, 3], range(10, 15), True, set[str]()),
        ([3, 1], range(10, 15), True, {"wrong owner"}),
        ([1, 3], [99, *range(11, 15)], True, {"wrong owner"}),
        ([1, 3], range(10, 15), False, {"uninitialised read"}),
        (None, range(10, 15), False, {"uninitialised read"}),
    ],
)
def test_a_forward_reads_what_the_engine_loads_before_it(
    served: Served,
    stored: list[int] | None,
    tokens: Sequence[int],
    loads: bool,
    found: set[str],
) -> None:
    """A prompt is in a file by its key. The engine loads it once the forward is prepared.

    Without metadata of attention, it loads nothing.
    """
    connector, none = Part(_generate_foldername_debug=lambda *_: "/tmp/key"), lambda *_: None

    def used(*_: object) -> None:
        hooked(served.engine.files, none, connector)

    def prompt(blocks: list[int], is_store: bool) -> None:
        slots = (torch.tensor(blocks)[:, None] * 4 + torch.arange(4)).flatten()
        one = Part(is_store=is_store, slot_mapping=slots, token_ids=blocks, mm_hashes=[])
        connector._get_connector_metadata = lambda: Part(requests=[one])

    def load() -> None:
        if stored is None:
            served.engine.filled()
        else:
            served.cache[[5, 6]] = kept
            prompt([5, 6], is_store=False)
            hooked(served.engine.opens, used if loads else none, connector)

    kept = served.cache[stored or [1, 3]].clone()
    prompt(stored or [1, 3], is_store=True)
    hooked(served.engine.files, none, connector)
    hooked(served.engine.saves, none, connector)
    prompt([2, 4], is_store=True)  # A replay of a graph stores nothing.
    hooked(served.engine.saves, none, connector)
    served.scheduler.requests["b"] = a_request(*tokens)
    again = output({"b": 1}, new={"b": ([5, 7], [6, 8])}, hit=4)
    again.has_sync_kv_loads = True
    served.run(again, [[5, 7], [6, 8]], 4, [14], "b", copies={"before": load})
    assert served.found() == found


def test_a_forward_whose_loads_are_not_seen_leaves_no_verdict(tmp_path: Path) -> None:
    served = prefilled(Served(tmp_path))
    again = output({"a": 1}, cached={"a": (6, None)})
    again.has_sync_kv_loads = True
    served.run(again, [[1, 2], [3, 4]], 6, [16])
    served.journal.end()
    unsure = [line for line in lines_in(tmp_path) if line["kind"] == "undecided"]
    assert "without attention metadata" in unsure[0]["what"]


@pytest.mark.parametrize("simple", [False, True])
def test_what_happens_on_the_host_during_a_copy_is_counted(served: Served, simple: bool) -> None:
    manager, queue = Part(), Part()
    pool = Part(cpu_block_pool=Part(free_block_queue=queue))
    parts = [Part(connector_scheduler=Part(manager=manager)), Part(scheduler_manager=pool)]
    served.scheduler.connector = Part(_connectors=parts)
    one = job(True, [1], [0])
    if simple:
        hooked(served.engine.launches, lambda *_: None, Part(), [1], [1], True, 3)
        hooked(served.engine.takes, lambda *_: [Part(block_id=1)], queue, 1)
        hooked(served.engine.frees, lambda *_: None, queue, [Part(block_id=2)])
    else:
        hooked(served.engine.submits, lambda *_: None, Part(), 7, one.src_spec, one.dst_spec)
        hooked(served.engine.frees, lambda *_: None, manager, Part(chunk_id=5))
        hooked(served.engine.takes, lambda *_: [Part(chunk_id=0)], manager, ["key"])
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == set()
    happened = {name for name in served.journal.counts if name.startswith("copies under way")}
    assert happened == {"copies under way: a slot was handed out"}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_chunk_that_is_loaded_is_not_evictable(served: Served, when: str, pinned: bool) -> None:
    chunk = Part(chunk_id=0, ref_cnt=0)
    manager = Part(_policy={"key": chunk})
    served.scheduler.connector = Part(connector_scheduler=Part(manager=manager))
    one = job(False, [5], [0])

    def refers(count: int) -> None:
        chunk.ref_cnt = count
        hooked(served.engine.refers, lambda *_: None, manager, ["key"])

    refers(int(pinned and when == "during"))
    refers(int(pinned or when == "during"))
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    hooked(served.engine.submits, lambda *_: None, Part(), 7, one.src_spec, one.dst_spec)
    if not pinned and when == "during":
        refers(0)
    served.run(output({"a": 1}, cached={"a": (7, None)}), [[1, 2], [3, 4]], 7, [17])
    assert served.found() == (set() if pinned else {"copy under way"})


def test_a_chunk_on_the_host_that_nobody_has_is_a_leak(served: Served) -> None:
    manager = Part(_num_allocated_chunks=3, _num_chunks=8, _free_list=[1])
    manager._policy = Part(chunks={"key": Part(chunk_id=0, ref_cnt=0)})
    connector = Part(_jobs={1: None}, manager=manager)
    served.scheduler.connector = Part(connector_scheduler=connector)
    served.scheduler.requests.clear()
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == set()
    connector._jobs.clear()
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == {"leak"}


@pytest.mark.parametrize("ended", [True, False])
def test_an_ended_request_keeps_its_blocks_for_ever_if_no_copy_needs_them(
    served: Served, ended: bool
) -> None:
    manager = Part(_num_allocated_chunks=0, _num_chunks=8, _free_list=[], _policy=Part(chunks={}))
    connector = Part(_jobs={1: None}, manager=manager)
    served.scheduler.connector = Part(connector_scheduler=connector)
    served.scheduler.requests["a"].is_finished = lambda: ended
    served.free.remove(served.blocks[2])
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == set()
    connector._jobs.clear()
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == ({"leak"} if ended else set())


def test_a_block_that_the_simple_connector_keeps_pinned_is_a_leak(served: Served) -> None:
    blocks = [Part(block_id=number, ref_cnt=0, is_null=number == 0) for number in range(4)]
    free = Part(get_all_free_blocks=lambda: [one for one in blocks[1:] if not one.ref_cnt])
    manager = Part(cpu_block_pool=Part(blocks=blocks, free_block_queue=free))
    manager.has_pending_stores, manager._reqs_to_load = bool, {}
    manager._abandoned_reqs_to_load = {"aborted": 1}
    served.scheduler.connector = Part(scheduler_manager=manager)
    served.scheduler.requests.clear()
    blocks[2].ref_cnt = 1
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == set()
    manager._abandoned_reqs_to_load.clear()
    hooked(served.engine.idle, lambda *_: None, served.scheduler)
    assert served.found() == {"leak"}


@pytest.mark.parametrize(
    ("done", "host", "found"),
    [
        (True, (None, False), {"wrong owner"}),
        (False, (None, False), set()),
        (True, ("kept", False), set()),
        (True, ("emptied", True), {"wrong owner"}),
        (True, (type("ExampleConnector", (), {})(), True), set()),  # Its files stay.
    ],
)
def test_a_block_from_before_the_cache_was_emptied_is_not_read(
    served: Served, done: bool, host: tuple[Any, bool], found: set[str]
) -> None:
    served.scheduler.connector, resets = host
    hooked(served.engine.emptied, lambda *_: done, served.scheduler, False, resets)
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == found


@pytest.mark.parametrize(("mode", "kind"), [("FULL", "Part"), ("PIECEWISE", "pieces")])
def test_a_replay_is_judged_or_counted(served: Served, mode: str, kind: str) -> None:
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.replay(Part(runtime_mode=Part(name=mode), hidden_states=torch.zeros(1, 2)))
    assert served.found() == set()
    assert served.journal.counts[f"replays: {kind}"] == 1
    assert served.journal.counts.get("tried: unrepeatable replay", 0) == (mode == "FULL")


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_replay_with_an_effect_of_its_own_is_not_repeated(effect: str, tmp_path: Path) -> None:
    served = Served(tmp_path)
    part, name = effect.split(".")
    setattr(getattr(served.runner.vllm_config, part), name, True)
    prefilled(served).run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.replay(Part(runtime_mode=Part(name="FULL"), hidden_states=torch.zeros(1, 2)))
    assert served.found() == set()
    counts = served.journal.counts
    assert counts[f"not tried: unrepeatable replay: {EFFECTS[effect]}"] == 1
    served.journal.end()


def test_a_forward_that_is_not_checked_tells_what_it_writes(served: Served) -> None:
    watcher = served.engine.watcher
    assert watcher is not None
    skip(watcher, 1)
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.run(output({"a": 1}, cached={"a": (7, None)}), [[1, 2], [3, 4]], 7, [17])
    assert served.found() == set()
    assert served.journal.counts["skipped_forwards"] == 1
    assert served.journal.counts["forwards"] == 2


# Forwards without a graph.


@dataclass
class Context:
    """What the layers of a model are given for a forward."""

    cudagraph_runtime_mode: Any
    moe_layer_index: int = 0
    ubatch_slices: Any = None


class Experts:
    """A model with two layers of experts, which notes what the connector observes of its runs."""

    def __init__(self, watching: Any, context: Context) -> None:
        self.watching, self.context = watching, context
        self.seen: list[tuple[object, int]] = []

    def __call__(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return a hidden state per token, with padding, and another one of a layer between."""
        self.seen.append((self.watching.now, self.context.moe_layer_index))
        self.context.moe_layer_index += 2
        made = torch.full((len(input_ids), 1), float(len(self.seen)))
        return made, [made + 1]


@pytest.mark.parametrize("mode", ["NONE", "FULL"])
@pytest.mark.parametrize("once", [None, "it counts the load of experts"])
def test_a_second_run_is_not_observed_and_leaves_the_context_alone(
    mode: str, once: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, kept = Context(Part(name=mode)), list[Any]()
    module = Part(is_forward_context_available=lambda: True, get_forward_context=lambda: context)
    monkeypatch.setitem(sys.modules, "vllm.forward_context", module)
    watching: Any = VllmEngine.__new__(VllmEngine)
    model = Experts(watching, context)

    def run(replay: Any, again: Any) -> object:
        assert again()
        kept.append(replay)
        return replay.run()

    watching.watcher = Part(lines=Lines("vllm"), run_without_graph=run, between_stages=False)
    watching.once = once
    watching.now = Part(
        runner=Part(get_model=lambda: model),
        batch=Part(live=(1, 2)),
        forward=Part(kind="prefill"),
        called=False,
    )
    ids = torch.arange(4)
    result, _ = hooked(watching.model, Experts.__call__, model, input_ids=ids)
    assert (len(kept), len(model.seen)) == (mode == "NONE", 1)
    assert result.tolist() == [[1]] * 4
    for replay in kept:
        assert (replay.kind, replay.rows, replay.once) == ("prefill forward", 2, once)
        assert [one.tensor is ids for one in replay.inputs] == [True]
        first = {name: one.tolist() for name, one in replay.outputs().items()}
        assert first == {"output[0]": [[1], [1]], "output[1][0]": [[2], [2]]}
        replay.run()
        assert replay.outputs()["output[0]"].tolist() == [[2], [2]]
        assert model.seen == [(watching.now, 0), (None, 0)]
        assert context.moe_layer_index == 2


@pytest.mark.parametrize("given", [1, ("kv_cache",), ("weights",)])
def test_kv_is_not_read_after_its_memory_was_given_up(tmp_path: Path, given: Any) -> None:
    served = Served(tmp_path)
    served.scheduler.requests["a"] = a_request(*PROMPT)
    served.run(FIRST, TABLE, 0, PROMPT)
    if given != ("weights",):
        served.cache.fill_(0.5)
    hooked(served.engine.sleeps, lambda *_: None, Part(model_runner=served.runner), given)
    served.scheduler.requests["a"].all_token_ids.append(16)
    served.run(DECODE, TABLE, 6, [16])
    assert served.found() == (set() if given == ("weights",) else {"uninitialised read"})
    served.journal.end()


def image(shows: float, at: int = 1) -> Part:
    """Return an image of two tokens, whose hash all images have."""
    data = {"image_embeds": Part(data=torch.full((2, 4), shows))}
    place = Part(offset=at, length=2)
    return Part(data=data, modality="image", identifier="hash", mm_position=place)


@pytest.mark.parametrize(("shows", "found"), [(1.0, set()), (2.0, {"wrong owner"})])
def test_kv_is_that_of_an_image_and_not_of_its_hash(
    tmp_path: Path, shows: float, found: set[str]
) -> None:
    served = Served(tmp_path)
    for name, what in (("a", 1.0), ("b", shows)):
        served.scheduler.requests[name] = Part(
            **vars(a_request(*range(10, 20))), mm_features=[image(what)]
        )
    first, again = (
        output({"a": 6}, new={"a": ([1, 2], [3, 4])}),
        output({"b": 1}, new={"b": ([1, 5], [3, 6])}, hit=4),
    )
    served.run(first, [[1, 2], [3, 4]], 0, [10, 11, 11, 13, 14, 15])  # 11 stands for any image.
    served.run(again, [[1, 5], [3, 6]], 4, [14], "b")
    assert served.found() == found
    served.journal.end()


@pytest.mark.parametrize(
    ("newer", "held", "found"), [(False, 5, set()), (True, 6, {"stale input"})]
)
def test_positions_in_several_dimensions_are_those_of_the_request(
    served: Served, newer: bool, held: int, found: set[str]
) -> None:
    given = torch.full((3, 8), held)
    served.engine.requests.known["a"].places = torch.zeros(3, 6).long(), -1
    if newer:
        served.runner.model_state = Part(rope_state=Part(positions=given))
    else:
        served.runner.mrope_positions = Part(gpu=given)
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.replay(Part(runtime_mode=Part(name="FULL"), hidden_states=torch.zeros(1, 2)))
    assert served.found() == found


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("stage", [0, 1])
def test_embeddings_of_images_are_those_that_the_vision_model_computed(
    served: Served, newer: bool, stage: int
) -> None:
    computed, given = torch.rand(2, 4), torch.zeros(8, 4)
    served.runner.get_model = lambda: Part(get_mrope_input_positions=None)
    new = Part(req_id="a", prompt_token_ids=[7], mm_features=[image(1, at=5)])
    served.engine.follow_images(served.runner, Part(scheduled_new_reqs=[new]))
    if newer:
        served.runner.model_state = Part(encoder_runner=Part(inputs_embeds=given))
        served.runner.encoder_cache = Part(encoder_outputs={"hash": computed})
    else:
        served.runner.inputs_embeds = Part(gpu=given)
        served.runner.encoder_cache = {"hash": computed}
    served.runner.intermediate_tensors = {} if stage else None
    for token, found in ((1, set[str]()), (0, {"wrong row"} if stage == 0 else set())):
        given[0] = computed[token]  # Position 6 is that of the second token of the image.
        served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
        served.replay(Part(runtime_mode=Part(name="FULL"), hidden_states=torch.zeros(1, 2)))
        assert served.found() == found


def test_the_positions_of_a_request_are_those_that_its_model_computes(served: Served) -> None:
    def of(tokens: list[int], images: list[Any]) -> tuple[torch.Tensor, int]:
        assert [one.modality for one in images] == ["image"]
        return torch.tensor([tokens] * 3), -2

    served.runner.get_model = lambda: Part(get_mrope_input_positions=of)
    new = Part(
        req_id="a", prompt_token_ids=[7, 8], mm_features=[image(1), Part(modality="prompt_embeds")]
    )
    said = Part(scheduled_new_reqs=[new])
    served.engine.follow_images(served.runner, said)
    assert served.engine.requests.known["a"].places is None
    served.runner.model_config = Part(uses_mrope=True)
    served.engine.follow_images(served.runner, said)
    held, delta = served.engine.requests.known["a"].places or (torch.zeros(0), 0)
    assert (held.tolist(), delta) == ([[7, 8]] * 3, -2)
