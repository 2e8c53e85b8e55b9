"""The rows of sglang's draft models, the lists of their steps, and recurrent states."""

from collections import UserList
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors.following import expected, implied_by
from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sglang.allocations import Allocations
from paritybit.connectors.sglang.attention import lists_of
from paritybit.connectors.sglang.models import SglangModel
from paritybit.connectors.sglang.pools import LOCATIONS, SglangPool, described
from paritybit.connectors.sglang.rows import (
    Rows,
    bases_of,
    draft_forward_of,
    embeddings_of,
    forward_of,
    implied,
    kept_ids,
    paths_of,
    row_of,
    space,
)
from paritybit.connectors.sglang.states import CLEARED, NAME, OTHER, SglangStates
from paritybit.connectors.sharing import WHOLE, Share
from paritybit.watch.bits import Checksums
from paritybit.watch.checks import stale_input, wrong_list, wrong_row
from paritybit.watch.facts import Forward, IndexList, Row, RowValues
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.observations import GivenList, Inputs
from properties.connectors import parts
from properties.connectors.parts import hooked

TABLE = torch.arange(10, 90).view(4, 20)
STEPS = 3
REQUESTS = (parts.request("a", 1, [1, 2, 3], [4]), parts.request("b", 2, [5, 6], [7]))


def batch_of(mode: str, totals: list[int], **more: Any) -> Any:
    """Return a batch of the rows 1 and 2 of the table, which are those of "a" and "b"."""
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode.upper()),
        req_pool_indices=torch.tensor([1, 2]),
        seq_lens=torch.tensor(totals),
        spec_info=None,
        **more,
    )


def described_by(
    batch: Any, topk: int | None, ahead: bool = False
) -> tuple[Forward, Rows, SglangPool]:
    pool = described(parts.kept(parts.SubPool(100, 1)), None, "draft.")
    steps = SimpleNamespace(topk=topk, speculative_num_steps=STEPS)
    forward, found = draft_forward_of(batch, REQUESTS, pool, TABLE, steps, ahead)
    return forward, found, pool


def pictured(name: str, shows: float) -> Any:
    """Return a request with an image at position 1, whose hash is 900, and one token after it."""
    given = parts.request(name, 1, [3, 900, 900, 4], [])
    item = parts.Part(feature=torch.full((2, 4), shows), offsets=[(1, 2)])
    places = torch.tensor([[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]])
    given.multimodal_inputs = parts.Part(
        mm_items=[item], mrope_positions=places, mrope_position_delta=torch.tensor([[-1]])
    )
    return given


def test_images_with_equal_hashes_are_told_apart_also_when_their_request_has_ended() -> None:
    one, same, other = (pictured(name, shows) for name, shows in zip("abc", (1, 1, 2), strict=True))
    tokens = [rows_by_images(each) for each in (one, same, other)]
    assert tokens[0] == tokens[1]
    assert tokens[0][0] == tokens[2][0] == 3
    assert all(token < 0 for each in tokens for token in each[1:3])
    assert tokens[0][1] != tokens[2][1]
    one.multimodal_inputs = None
    assert rows_by_images(one) == tokens[0]


def test_the_embeddings_of_images_are_those_that_came_with_them() -> None:
    request, given = pictured("a", 1), torch.rand(5, 4)
    (item,) = request.multimodal_inputs.mm_items
    assert [*embeddings_of(request)] == [(1, 2, None)]  # A vision model computes them.
    ((*_, features),) = embeddings_of(request, passed=True)
    assert features is not None and features.equal(item.feature)
    item.offsets, item.precomputed_embeddings = [(1, 2), (5, 7)], given
    (first, count, one), (later, more, other) = embeddings_of(request)
    assert (first, count, later, more) == (1, 2, 5, 3)
    assert one is not None and other is not None
    assert torch.cat([one, other]).equal(given)
    request.multimodal_inputs = None
    assert [*embeddings_of(request)] == []


def rows_by_images(request: Any) -> list[int]:
    """Return the tokens of the row of a request."""
    slots = {"full": torch.arange(4)}
    return [int(token or 0) for token in row_of(request, 0, 4, slots).tokens]


def test_the_positions_of_images_are_those_of_their_request() -> None:
    requests = [pictured("a", 1), known("b", 2, 3)]
    slots = {"full": torch.arange(6)}
    rows = [row_of(requests[0], 3, 3, slots), row_of(requests[1], 2, 1, slots)]
    model = SglangModel(
        described(parts.kept(parts.SubPool(100, 1)), None),
        drafts=False,
        runner=parts.kept(parts.Part()),
    )
    batch = parts.Part(mrope_positions=torch.zeros(3, 4))
    right = model.implied(batch, Rows(rows, [0, 1]), "decode", requests)["mrope_positions"]
    assert right.tolist() == [[3, 3, 4, 2]] * 3
    assert "mrope_positions" not in model.implied(batch, Rows(rows, [0, 1]), "decode", requests[:1])


def test_the_adapter_the_extra_key_and_the_salt_each_name_a_space() -> None:
    given = [{}, *({name: "a"} for name in ("lora_id", "extra_key", "cache_salt"))]
    assert space(SimpleNamespace(lora_id=None, extra_key=None)) == ""
    assert len({space(SimpleNamespace(**one)) for one in given}) == len(given)


def chain() -> Any:
    """Return a batch for a graph of steps without branches."""
    locations = torch.cat((TABLE[1, 4:7], TABLE[2, 2:5]))
    return batch_of("decode", [4, 2], out_cache_loc=locations)


def tree() -> Any:
    """Return a batch for a graph of steps with two branches per request."""
    return batch_of("decode", [4, 2], out_cache_loc=torch.arange(70, 82))


def accepted() -> Any:
    """Return a batch that takes up two and three accepted tokens."""
    return batch_of(
        "draft_extend_v2",
        [5, 5],
        out_cache_loc=torch.cat((TABLE[1, 3:5], TABLE[2, 2:5])),
        extend_seq_lens_cpu=[2, 3],
        extend_seq_lens=None,
    )


def test_a_draft_that_is_given_the_next_token_has_rows_without_the_first() -> None:
    _, found, _ = described_by(accepted(), None, ahead=True)
    assert [row.tokens for row in found.rows] == [[2, 3, 4, None, None], [6, 7, None, None, None]]
    assert [row.space for row in found.rows] == [" after 1", " after 5"]


def prefilled(totals: list[int]) -> Any:
    """Return a batch that prefills the first tokens of both requests."""
    return batch_of("extend", totals, extend_seq_lens_cpu=totals, extend_seq_lens=None)


def verified(counts: list[int]) -> Any:
    """Return a batch that takes up so many accepted tokens."""
    batch = accepted()
    batch.spec_info = SimpleNamespace(num_accept_tokens=torch.tensor(counts))
    return batch


@pytest.mark.parametrize(
    ("batch", "names_next", "kept"),
    [
        (prefilled([4, 3]), False, [4, 3]),
        (prefilled([2, 1]), False, [1, 0]),
        (prefilled([2, 1]), True, [2, 1]),
        (prefilled([3, 2]), True, [2, 1]),
        (accepted(), True, [0, 0]),
        (verified([2, 1]), True, [2, 1]),
        (chain(), True, [0, 0]),
    ],
    ids=["whole", "chunks", "next token is named", "next token is the request's own",
         "accepted", "verified", "steps"],
)  # fmt: skip
def test_only_ids_that_belong_to_the_tokens_of_a_request_are_judged(
    batch: Any, names_next: bool, kept: list[int]
) -> None:
    """The last id of a chunk is one of them where the release knows the next token."""
    assert kept_ids(batch, REQUESTS, names_next) == kept


@pytest.mark.parametrize("batch", [chain(), tree(), accepted()], ids=["chain", "tree", "accepted"])
def test_rows_imply_what_a_right_batch_holds(batch: Any) -> None:
    forward, found, _ = described_by(batch, 2 if len(batch.out_cache_loc) == 12 else 1)
    inputs = implied(found, forward.kind, "draft.full")
    assert inputs["out_cache_loc"].tolist() == batch.out_cache_loc.tolist()
    assert inputs["positions"][0] == (3 if "extend" in forward.kind else 4)
    assert inputs["seq_lens"].tolist() == batch.seq_lens.tolist()


def known(name: str, row: int, total: int) -> Any:
    """Return a request of which this many positions are cached or computed."""
    given = parts.request(name, row, [1] * total, [])
    given.kv = SimpleNamespace(req_pool_idx=row, kv_committed_len=total)
    return given


KNOWN = known("a", 1, 5), known("b", 2, 3)
RIGHT = {"positions": [4, 2], "out_cache_loc": [34, 52], "seq_lens": [5, 3]}


def blamed(batch: Any, mine: Sequence[Any], **held: list[int]) -> dict[str, str | None]:
    """Return the cause of each input of a decoding batch that is wrong, with these values."""
    pool = described(parts.kept(parts.SubPool(100, 1)), None)
    forward, found = forward_of(batch, mine, pool, TABLE)
    model = SglangModel(pool, drafts=False, runner=parts.kept(parts.Part()))
    right = model.implied(batch, found, forward.kind, mine)
    inputs = [expected(name, torch.tensor(one), right[name]) for name, one in held.items()]
    bases = [(base, model.implied_by(base, batch, found, forward, mine)) for base in forward.bases]
    given = Inputs(1, forward, "batch", implied_by(inputs, bases), {})
    causes = {one.text.split()[1]: one.cause for one in stale_input.judge(given)}
    return {name: None if one is None else str(one["what"]) for name, one in causes.items()}


@pytest.mark.parametrize(
    ("rows", "totals", "held", "causes"),
    [
        ([1, 2], [5, 3], {}, {}),
        # All others are right, or follow from a wrong one.
        ([1, 2], [5, 2], {"seq_lens": [5, 2], "positions": [4, 1], "out_cache_loc": [34, 51]},
         dict.fromkeys(RIGHT, "seq_lens")),
        ([2, 1], [5, 3], {"out_cache_loc": [54, 32]}, {"out_cache_loc": "req_pool_indices"}),
        # These are wrong themselves.
        ([1, 2], [5, 3], {"positions": [4, 1]}, {"positions": "positions"}),
        ([1, 2], [5, 2], {"out_cache_loc": [34, 53]}, {"out_cache_loc": "out_cache_loc"}),
        ([1, 2], [5, 3], {"out_cache_loc": [52, 34]}, {"out_cache_loc": "out_cache_loc"}),
        # What a wrong one implies is not known, or what two of them do.
        ([1, 2], [5, 99], {"positions": [4, 98]}, {"positions": None}),
        ([2, 1], [5, 2], {"out_cache_loc": [54, 31]}, {"out_cache_loc": None}),
    ],
)  # fmt: skip
def test_the_cause_is_the_field_from_which_the_wrong_ones_are_made(
    rows: list[int], totals: list[int], held: dict[str, list[int]], causes: dict[str, str | None]
) -> None:
    batch = batch_of("decode", totals)
    batch.req_pool_indices = torch.tensor(rows)
    assert blamed(batch, KNOWN, **{**RIGHT, **held}) == causes


def test_a_list_that_agrees_with_a_wrong_field_is_not_to_blame() -> None:
    batch = batch_of("decode", [5, 3])
    batch.req_pool_indices = torch.tensor([2, 1])
    pool = described(parts.kept(parts.SubPool(100, 1)), None)
    forward, _ = forward_of(batch, KNOWN, pool, TABLE)
    ledger = Ledger(next(iter(pool.groups.values())), Names())

    def causes(*rows: Tensor) -> list[Any]:
        lengths = torch.tensor([len(row) for row in rows])
        given = IndexList(
            "kv", ledger.group.name, torch.cat(rows), lengths.cumsum(0) - lengths, lengths
        )
        found = wrong_list.judge(GivenList(1, forward, ledger, given))
        return [one.cause and one.cause["what"] for one in found]

    assert causes(TABLE[1, :5], TABLE[2, :3]) == []
    assert causes(TABLE[2, :5], TABLE[1, :3]) == ["req_pool_indices"] * 2
    assert causes(TABLE[2, :5], TABLE[3, :3]) == ["req_pool_indices", "the list kv"]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_share_contexts_list_their_own_positions(rank: int) -> None:
    share = Share(rank, 2)
    pool = described(parts.kept(parts.SubPool(50, 1)), None, share=share)
    batch = batch_of("decode", [5, 3])
    forward, found = forward_of(batch, KNOWN, pool, TABLE)
    ledger = Ledger(pool.groups["full"], Names())
    assert implied(found, "decode", LOCATIONS)["out_cache_loc"].tolist() == [34, 52]
    assert pool.pages(torch.tensor([30, 31, 32, -2])).tolist() == [15, -1, 16, -1]

    def texts(*rows: Tensor) -> list[str]:
        padded = torch.zeros(1 - rank, dtype=torch.int64)  # Of one position, that of rank 0.
        lists = SimpleNamespace(
            kv_indptr=parts.bounds([*rows, padded]), kv_indices=torch.cat([*rows, padded])
        )
        backend = type("TritonAttnBackend", (), {"forward_metadata": lists})()
        (given,) = lists_of(backend, pool, "decode", found, 3, graph=False)
        return [one.text for one in wrong_list.judge(GivenList(1, forward, ledger, given))]

    mine = [TABLE[1, :5][rank::2] // 2, TABLE[2, :3][rank::2] // 2]
    assert texts(*mine) == []
    first, *_ = texts(mine[0].roll(1), mine[1])
    assert f"lists, for request a, position {rank} as slot" in first
    assert "entries" in texts(mine[0][:-1], mine[1])[0]
    assert "entries" in texts(mine[0], torch.cat((mine[1], mine[1])))[0]


def test_a_rank_that_shares_contexts_counts_its_own_slots() -> None:
    """A page of the allocator has one location of each rank for each slot of the pool's page."""
    allocations = Allocations("0", None, None)
    pool = described(parts.kept(parts.SubPool(50, 2)), None, share=Share(1, 2))
    allocator = parts.kept(parts.Part(page_size=4, free_pages=torch.tensor([3])))
    allocations.serve(pool, allocator)
    assert allocations.free_slots(allocator).tolist() == [6, 7]
    assert allocations.sizes(SimpleNamespace(size=lambda: 8), "size") == {"full": 4}


def lists_of_steps(batch: Any, topk: int) -> tuple[Forward, SglangPool, Any]:
    """Return a forward, its pool, and the backend that lists its steps, with a padded request."""
    forward, found, pool = described_by(batch, topk)
    bounds = torch.zeros(STEPS, 3 * topk + 1, dtype=torch.int32)
    entries = torch.zeros(STEPS, 60, dtype=torch.int64)
    for step in range(STEPS - 1):
        rows = [row.slots["draft.full"][: row.cached + step + 1] for row in found.rows]
        rows += [torch.zeros(1, dtype=torch.int64)] * topk
        bounds[step, 1:] = torch.tensor([len(row) for row in rows]).cumsum(0)
        entries[step, : int(bounds[step, -1])] = torch.cat(rows)
    kind = type("TritonMultiStepDraftBackend", (SimpleNamespace,), {})
    backend = kind(
        topk=topk,
        attn_backends=[None] * (STEPS - 1),
        kv_indptr=bounds,
        cuda_graph_kv_indices=entries,
    )
    return forward, pool, backend


def wrong(forward: Forward, pool: SglangPool, backend: Any) -> list[str]:
    """Return what the check says of the lists of a graph for three requests."""
    ledger = Ledger(pool.groups["draft.full"], Names())
    found = Rows(list(forward.rows), list(range(len(forward.rows))))
    given = lists_of(backend, pool, "decode", found, 3, graph=True)
    assert [one.step for one in given] == [0, 1]
    return [
        finding.text
        for one in given
        for finding in wrong_list.judge(GivenList(1, forward, ledger, one))
    ]


@pytest.mark.parametrize(("batch", "topk"), [(chain(), 1), (tree(), 2)], ids=["chain", "tree"])
def test_the_lists_of_each_step_are_judged(batch: Any, topk: int) -> None:
    forward, pool, backend = lists_of_steps(batch, topk)
    assert not wrong(forward, pool, backend)
    entries: Tensor = backend.cuda_graph_kv_indices
    entries[1, 2] += 1
    assert ["position 2 as slot" in text for text in wrong(forward, pool, backend)] == [True]


def test_each_branch_of_a_draft_tree_is_a_row() -> None:
    links = torch.tensor([[[1, 3, -1, -1]], [[-1, 2, -1, -1]]])  # First children, next siblings.
    info = SimpleNamespace(
        topk=2,
        draft_token_num=4,
        retrieve_next_token=links[0],
        retrieve_next_sibling=links[1],
    )
    assert paths_of(info, 0) == [[0, 1, 3], [0, 2]]
    batch = parts.decode([1], [3], [4, 5, 6, 7], [33, 34, 35, 36])
    batch.forward_mode, batch.spec_info = parts.mode("target_verify"), info
    pool = described(parts.kept(parts.SlidingPool(200)), 5)
    forward, found = forward_of(batch, [parts.request("a", 1, [1, 2, 3], [4])], pool, TABLE)
    assert [row.tokens[3:] for row in forward.rows] == [[4, 5, 7], [4, 6]]
    assert [row.slots["full"][3:].tolist() for row in forward.rows] == [[33, 34, 36], [33, 35]]
    assert found.batch_rows == [0, 0]


def pool_with_indexer(**changes: Any) -> Any:
    """Return a pool of two pages of two slots, whose second layer uses the choice of the first."""
    own = {"index_head_dim": 4, "index_page_size": 2, "dtype": torch.float32, **changes}
    keys = [torch.zeros(2, 2 * (4 + 4), dtype=torch.uint8), torch.zeros(0, 16, dtype=torch.uint8)]
    held = {"kv_buffer": [torch.zeros(4, 1, 6) for _ in keys], "index_k_with_scale_buffer": keys}
    return parts.kept(parts.Part(size=2, page_size=2, start_layer=0, **own, **held))


@pytest.mark.parametrize(("byte", "slot"), [(0, 2), (5, 3), (8, 2), (15, 3)])
def test_the_bytes_of_a_slot_are_also_those_of_an_indexer(byte: int, slot: int) -> None:
    held = pool_with_indexer()
    group = described(held, None).groups["full"]
    assert [len(layer.tensors) for layer in group.layers] == [3, 1]
    sums = Checksums(group)
    before = sums.all()
    held.index_k_with_scale_buffer[0][1, byte] = 1  # Keys of a page come before their scales.
    assert (sums.all() != before).nonzero().flatten().tolist() == [slot]
    held.kv_buffer[1][1] = 1
    assert (sums.all() != before).nonzero().flatten().tolist() == [1, slot]


@pytest.mark.parametrize("changes", [{"index_kpool": 2}, {"index_page_size": 1}])
def test_a_key_of_several_tokens_is_not_recognised(changes: dict[str, int]) -> None:
    with pytest.raises(NotRecognisedError, match="an indexer"):
        described(pool_with_indexer(**changes), None)


# Recurrent layers.


def table(**more: Any) -> Any:
    """Return a table of requests whose rows 1 and 2 have the states 5 and 3."""
    held = SimpleNamespace(
        conv=[torch.zeros(2, 9, 4, 2)], temporal=torch.zeros(2, 9, 1, 0), replayssm_d=None
    )
    found = parts.Part(
        mamba_pool=SimpleNamespace(mamba_cache=held),
        req_index_to_mamba_index_mapping=torch.tensor([0, 5, 3]),
        **more,
    )
    return parts.kept(found)


def told(kind: str = "extend", **more: Any) -> tuple[list[list[int]], dict[int, int]]:
    """Return the slots of states of a prompt that goes on and of one that begins, and the copies.

    A keyword argument is a field of the batch.
    """
    states, found, _ = rows_with_states(kind, **more)
    return found, states.due


def rows_with_states(
    kind: str, **more: Any
) -> tuple[SglangStates, list[list[int]], list[int] | None]:
    """Return states, the slots of two rows, and those that the forward may write, if not theirs."""
    states = SglangStates.of(table())
    assert states is not None
    rows = [
        Row("a", [1, 2, 3, 4], 2, 2, {"full": torch.arange(4)}),
        Row("b", [7, 8], 0, 2, {"full": torch.arange(4, 6)}),
    ]
    mode = parts.mode(kind)
    batch = SimpleNamespace(req_pool_indices=torch.tensor([1, 2]), forward_mode=mode, **more)
    forward, found = states.with_states(batch, Forward(kind, tuple(rows)), Rows(rows, [0, 1]))
    assert forward.rows == tuple(found.rows)
    assert found.rows[0].slots["full"].tolist() == [0, 1, 2, 3]
    owned = None if forward.owned is None else forward.owned[NAME].tolist()
    return states, [row.slots[NAME].tolist() for row in found.rows], owned


def copies(*pairs: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of a batch that lists copies, each a source and a target."""
    source, target = torch.tensor(pairs).T
    return {"mamba_cow_src_indices": source, "mamba_cow_dst_indices": target}


NONE = [[-1, 5, -1, 5], [-1, 3]]
FIRST = [[-1, 8, -1, 5], [-1, 3]]


@pytest.mark.parametrize(
    ("kind", "listed", "slots", "due"),
    [
        ("extend", {}, NONE, {}),
        ("extend", copies((8, 5)), FIRST, {5: 8}),  # It is read where it is copied from.
        # As in sglang 0.5.14, whose batches keep the lists of their prompts.
        ("decode", copies((8, 5)), NONE, {}),
        # A prompt without a cached prefix copies none, as in sgl-project/sglang#29354.
        ("extend", copies((8, 5), (7, 3)), FIRST, {5: 8, 3: -1}),
    ],
)
def test_a_row_reads_the_state_before_it_and_writes_the_one_after_it(
    kind: str, listed: dict[str, Any], slots: list[list[int]], due: dict[int, int]
) -> None:
    assert told(kind, **listed) == (slots, due)


def tracks(lengths: Sequence[int], *slots: int) -> dict[str, Any]:
    """Return the fields of a batch that keeps states in slots, -1 for none, after more tokens."""
    target = torch.tensor(slots)
    held = {"mamba_track_indices": target, "mamba_track_mask": target >= 0}
    return held | {"mamba_track_aligned_lens": lambda: torch.tensor(lengths)}


@pytest.mark.parametrize(
    ("kind", "tracked", "slots", "owned", "kept"),
    [
        ("extend", tracks([1, 9], 7, -1), [[-1, 5, 7, 5], [-1, 3]], None, []),
        # A state at the end of a row is kept twice.
        ("extend", tracks([2, 1], 7, 8), [[-1, 5, -1, 5], [8, 3]], [5, 3, 7, 8], [(5, 7)]),
        ("decode", tracks([], -1, 6), [[-1, 5, -1, 5], [-1, 3]], [5, 3, -1, 6], [(3, 6)]),
    ],
)
def test_a_row_keeps_a_state_for_the_prefix_cache(
    kind: str,
    tracked: dict[str, Any],
    slots: list[list[int]],
    owned: list[int] | None,
    kept: list[tuple[int, int]],
) -> None:
    states, found, mine = rows_with_states(kind, **tracked)
    assert (found, mine, states.kept) == (slots, owned, kept)
    copied: list[Any] = []
    watcher = SimpleNamespace(copied=lambda *given: copied.append(given))
    states.end(watcher)  # type: ignore[arg-type]
    pairs = [pair for _, *ends in copied for pair in zip(*map(Tensor.tolist, ends), strict=True)]
    assert (pairs, states.kept) == (kept, [])


def test_a_row_begins_with_a_state_that_the_forward_cleared_or_copied_whole() -> None:
    states, *_ = rows_with_states("extend", mamba_clear_indices=None)
    assert states.due == {3: CLEARED}
    held = states.table.mamba_pool.mamba_cache
    held.conv[0][:] = torch.arange(9)[:, None, None]
    states.cleared(torch.tensor([0, 3]))
    assert states.seen == {0: CLEARED, 3: OTHER}
    held.conv[0][:, 4] = held.conv[0][:, 5]
    states.copied(torch.tensor([5, 5]), torch.tensor([4, 3]))
    assert states.seen == {0: CLEARED, 4: 5, 3: OTHER}


@pytest.mark.parametrize(
    ("change", "tokens", "update", "wrong"),
    [
        (0.0, [7, 8], "", []),
        (1e-5, [7, 8], "", []),
        (0.1, [7, 8], "", ["b"]),
        (0.1, [7, 9], "", []),
        (0.1, [7, None], "", ["b"]),  # It is known in the next forward.
        (0.1, [7, 8], "none", ["b"]),
        (0.1, [7, 8], "with a flush", []),
        (0.1, [7, 8], "without one", []),
    ],
)
def test_states_of_the_same_tokens_and_weights_are_alike(
    change: float, tokens: list[int | None], update: str, wrong: list[str]
) -> None:
    """The cache may be emptied in between."""
    states, judged = SglangStates(table(), compared=True), list[RowValues]()
    watcher = SimpleNamespace(judge_rows=lambda _, values: judged.extend(values))
    allocations = Allocations("0", None, None)
    allocations.states = states
    part, before = states.table.mamba_pool.mamba_cache.conv[0], Row("a", [7, 8], 0, 2, {})
    part[:, 5] = part[:, 3] = torch.rand(4, 2)
    part[:, 3, 0] += change
    for row, slot in ((before, 5), (replace(before, request="b", tokens=tokens), 3)):
        states.made = [(row, slot, 2)]
        states.end(watcher)  # type: ignore[arg-type]
        if update == "none":
            hooked(allocations.emptied, lambda *given: True, parts.Part())
        elif update:
            asked = SimpleNamespace(flush_cache=update == "with a flush")
            done = lambda *_: SimpleNamespace(success=True)  # noqa: E731
            hooked(allocations.emptied, done, parts.Part(), asked)
    later = replace(row, tokens=[7, tokens[1] or 8, 9], cached=2, computed=1)
    states.made = [(later, 4, 3)]
    states.end(watcher)  # type: ignore[arg-type]
    found = [one.requests[0] for one in judged if bool(wrong_row.differing(one).any())]
    assert found == wrong


def test_states_are_copied_between_forwards_and_freed() -> None:
    """What a forward copies itself, it reads where it copies from."""
    told: list[Any] = []
    watcher = SimpleNamespace(
        watching=True,
        copied=lambda *given: told.append(("copied", *given[:3])),
        freed=lambda *given: told.append(("freed", *given[:2])),
    )
    pool, allocator, slots = parts.Part(), parts.Part(), torch.tensor([4])
    allocations = Allocations("0", None, None)
    allocations.watcher = watcher  # type: ignore[assignment]
    allocations.follow([(pool, NAME), (allocator, NAME)])
    allocations.states = states = SglangStates(table())
    for watching in (True, False):
        watcher.watching = watching
        hooked(allocations.copy_state, lambda *given: None, pool, slots, slots + 1)
    hooked(allocations.free, lambda *given: None, allocator, slots)
    assert told == [("copied", NAME, slots, slots + 1), ("freed", NAME, slots)]
    assert states.seen == {5: 4}
    told.clear()
    states.due = {5: 8, 3: -1}  # The row of slot 3 has no cached prefix.
    watcher.judge_inputs = lambda _, inputs: told.extend(inputs)
    counts = dict[str, int]()
    watcher.journal, states.read = SimpleNamespace(count=counts.update), 2
    states.judge(watcher)  # type: ignore[arg-type]
    assert [(one.tensor.tolist(), one.expected.tolist()) for one in told] == [([4, -1], [8, -1])]
    assert counts == {"state_reads": 2}


def test_the_states_that_are_free_and_cached_are_reported_while_nothing_runs() -> None:
    free, cached, told = torch.tensor([1, 2]), torch.tensor([3]), dict[str, Any]()
    allocations = Allocations("0", None, None)
    allocations.watcher = SimpleNamespace(  # type: ignore[assignment]
        idle=lambda groups, locks, *_: told.update(groups, locks=locks),
        cached=lambda name, slots, evictable: told.update(counted=(name, slots, evictable)),
    )
    pool = SimpleNamespace(slots=lambda _: {}, sliding=None, share=WHOLE)
    allocations.pool = pool  # type: ignore[assignment]
    owner = parts.Part(mamba_pool=parts.Part(), mamba_allocator=parts.Part(free_slots=free))
    allocations.states = SglangStates(parts.kept(owner))
    cache = SimpleNamespace(
        all_values_flatten=lambda: cached,
        all_mamba_values_flatten=lambda: cached,
        mamba_protected_size=lambda: 1,
        mamba_evictable_size=lambda: 4,
    )
    allocations.judge_idle(cache, ([], 0), True)
    assert [one.tolist() for one in told[NAME]] == [[1, 2], [3]]
    assert told["locks"] == {NAME: 1}
    assert told["counted"] == (NAME, cached, 5)


@pytest.mark.parametrize(
    ("bigram", "images", "found"),
    [
        (False, None, [("full", [1, 2, 3], [8, 9]), (NAME, [1, 2, 3], [5])]),
        (True, None, []),  # Each entry of the key is a pair of tokens.
        (False, "an image", []),
    ],
)
def test_what_a_request_adds_to_the_prefix_cache_is_judged_by_its_tokens(
    bigram: bool, images: str | None, found: list[Any]
) -> None:
    """Slots that the cache already had are left out, and so is what is added without a request."""
    told: list[Any] = []
    allocations = Allocations("0", None, None)
    allocations.watcher = SimpleNamespace(  # type: ignore[assignment]
        settings=SimpleNamespace(every=1),
        offered=lambda group, _, tokens, slots, space: told.append((group, tokens, slots.tolist())),
    )
    allocations.pool = described(pool := parts.SubPool(16, 1), None)
    allocations.states = SglangStates(table())
    request = parts.Part(rid="a", multimodal_inputs=images)
    key = UserList([1, 2, 3])
    vars(key).update(token_ids=[1, 2, 3], is_bigram=bigram)
    given = parts.Part(
        key=key,
        value=torch.tensor([7, 8, 9], dtype=torch.int32),
        mamba_value=torch.tensor([5]),
        prev_prefix_len=1,
    )

    def cache(*_: object) -> None:
        hooked(allocations.inserts, lambda *_: None, parts.Part(), given)

    cache()
    assert told == []
    hooked(allocations.caches, cache, parts.Part(), request)
    assert told == found
    del pool


@pytest.mark.parametrize("mode", ["extend", "mixed"])
def test_only_the_requests_of_a_mixed_batch_are_known_beforehand(mode: str) -> None:
    """A request with drafts that decodes beside prompts counts other positions as committed."""
    ones = torch.ones(1, dtype=torch.int64)
    fields = dict.fromkeys(("req_pool_indices", "seq_lens"), ones)
    fields |= dict.fromkeys(("extend_prefix_lens", "extend_seq_lens"), ones)
    request = parts.Part(kv=parts.Part(req_pool_idx=1, kv_committed_len=2))
    known = bases_of(parts.Part(spec_info=None, **fields), [request], mode, ([1], [1]))
    assert {*known} == ({*fields} if mode == "extend" else {"req_pool_indices"})
