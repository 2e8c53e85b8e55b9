"""What sglang's kernels and its sampler get for each row is what the requests imply."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.following import expected, pages
from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sampling import UNSEEN
from paritybit.connectors.sglang.attention import lists_of, metadata_of
from paritybit.connectors.sglang.engine import SglangEngine
from paritybit.connectors.sglang.graphs import counted, without_images
from paritybit.connectors.sglang.models import SglangModel
from paritybit.connectors.sglang.pools import SglangPool
from paritybit.connectors.sglang.rows import Recorded, Rows, roots
from paritybit.connectors.sglang.sampling import (
    COUNTED,
    KEPT,
    OF_ENDS,
    OF_TOKENS,
    allowed_tokens,
    biased,
    buffers_used,
    likelihoods,
    listed,
    of_prompts,
    rows,
)
from paritybit.watch.checks import stale_input, wrong_list, wrong_row
from paritybit.watch.facts import Chunks, Forward, Group, Row, RowValues, StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.observations import Inputs, RowsGiven
from paritybit.watch.settings import Settings
from properties.connectors import parts
from properties.connectors.parts import Part, hooked

# The metadata of attention backends.

WINDOW = 3


def backend(kind: str, **attributes: Any) -> Any:
    return type(kind, (SimpleNamespace,), {})(sliding_window_size=WINDOW, **attributes)


def rows_of(*spans: tuple[int, int]) -> Rows:
    found = Rows()
    for index, (cached, computed) in enumerate(spans):
        found.add(index, Row("a", [1] * (cached + computed), cached, computed, {}))
    return found


def chain(count: int) -> Any:
    """Return a batch that verifies so many draft tokens without branches."""
    return SimpleNamespace(spec_info=SimpleNamespace(topk=1, draft_token_num=count))


def stale(inputs: Iterable[StaticInput]) -> list[str]:
    """Return the names of the inputs that hold something else than is implied."""
    found = Inputs(1, Forward("decode", ()), "b", list(inputs), {})
    return [str(finding.cause["input"]) for finding in stale_input.judge(found) if finding.cause]


VERIFIES = {
    "qo_indptr": [0, 2, 4, 99],
    "mask_indptr": [0, 8, 22, 99],
    "window_kv_offsets": [0, 2, 99],
}
"""What is right for two requests with 2 and 5 cached keys and two draft tokens each, then padding.
"""


def verified(graph: bool, **changed: list[int]) -> list[StaticInput]:
    held = {name: torch.tensor(value) for name, value in {**VERIFIES, **changed}.items()}
    meta = SimpleNamespace() if graph else SimpleNamespace(**held)
    own = {**held, **{f"cuda_graph_{name}": held[name] for name in held}} if graph else {}
    given = backend("TritonAttnBackend", forward_metadata=meta, **own)
    found = rows_of((2, 2), (5, 2))
    return list(metadata_of(given, "target_verify", chain(2), found, graph))


@pytest.mark.parametrize("graph", [False, True])
def test_what_a_verification_is_given_is_compared(graph: bool) -> None:
    assert {one.name for one in verified(graph)} == set(VERIFIES)
    assert not stale(verified(graph))
    for name, value in VERIFIES.items():
        wrong = [value[0], value[1] + 1, *value[2:]]
        assert stale(verified(graph, **{name: wrong})) == [name]


@pytest.mark.parametrize(("size", "right"), [(3, True), (4, True), (2, False), (None, True)])
def test_the_grid_covers_the_longest_prompt(size: int | None, right: bool) -> None:
    given = backend("TritonAttnBackend", forward_metadata=SimpleNamespace(max_extend_len=size))
    spans = rows_of((0, 1), (4, 3))
    inputs = list(metadata_of(given, "extend", SimpleNamespace(), spans, graph=False))
    assert stale(inputs) == ([] if right else ["max_extend_len"])


@pytest.mark.parametrize(
    ("mode", "topk", "lengths"), [("decode", 1, [4]), ("target_verify", 1, [5]),
                                  ("target_verify", 2, [3])]
)  # fmt: skip
def test_the_lengths_of_flash_attention_are_exact(mode: str, topk: int, lengths: list[int]) -> None:
    for held, found in ((lengths, []), ([lengths[0] + 1], ["cache_seqlens_int32"])):
        meta = SimpleNamespace(cache_seqlens_int32=torch.tensor(held))
        given = backend("FlashAttentionBackend", forward_metadata=meta, topk=topk)
        assert stale(list(metadata_of(given, mode, chain(2), rows_of((3, 1)), graph=True))) == found


def wrong_in_chunks(**changed: list[int]) -> tuple[list[str], list[str]]:
    """Return what is stale, and for which requests a list is wrong, with changed metadata.

    There are a prompt of 6 tokens after 5, a decoding request, and a padded row. Some layers have
    chunks of 4 positions, and pages have 2 slots.
    """
    tables = [[2, 3, 4, 5, 6, 7], [9, 10, 11, 12, 13, 0], [0] * 6]
    given = {
        "local_query_start_loc": [0, 3, 6, 7, 8],
        "local_seqused_k": [4, 3, 2, 1],
        "local_block_table": [4, 5, 6, 7, 13, 0, 0, 0],
        **changed,
    }
    local = SimpleNamespace(**{name: torch.tensor(one) for name, one in given.items()})
    local.local_block_table = local.local_block_table.view(-1, 2)
    meta = SimpleNamespace(
        cache_seqlens_int32=torch.tensor([11, 10, 1]),
        page_table=torch.tensor(tables),
        local_attn_metadata=local,
    )
    builder = SimpleNamespace(attention_chunk_size=4)
    known = {"forward_metadata": meta, "local_attn_builder": builder, "page_size": 2}
    pool = SglangPool(None, Chunks(4), {"full": Group("full", ())})
    found, facts = Rows(), ((5, 6), (9, 1))
    for at, (name, (cached, more)) in enumerate(zip("ab", facts, strict=True)):
        slots = {"full": pages(tables[at], 2)[: cached + more]}
        found.add(at, Row(name, [1] * (cached + more), cached, more, slots))
    held = backend("FlashAttentionBackend", **known)
    inputs = list(metadata_of(held, "extend", SimpleNamespace(), found, graph=True))
    forward, wrong = Forward("extend", tuple(found.rows)), list[str]()
    ledger: Any = SimpleNamespace(group=Group("full", (), reserved=frozenset({0, 1})), slots=0)
    for one in lists_of(held, pool, "extend", found, 3, graph=True):
        lists: Any = SimpleNamespace(
            given=one, forward=forward, ledger=ledger, number=1, found=lambda *_, **more: more
        )
        judged = list[Any](wrong_list.judge(lists))
        wrong += [(one.get("reader") or {}).get("request", "") for one in judged]
    return stale(inputs), wrong


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, ([], [])),
        ({"local_seqused_k": [4, 2, 2, 1]}, (["local_seqused_k"], ["a"])),
        ({"local_seqused_k": [3, 3, 2, 1]}, (["local_seqused_k"], [])),
        ({"local_query_start_loc": [0, 4, 6, 7, 8]}, (["local_query_start_loc"], [])),
        ({"local_block_table": [4, 5, 6, 8, 13, 0, 0, 0]}, ([], ["a"])),
        ({"local_block_table": [4, 5, 6, 7, 12, 0, 0, 0]}, ([], ["b"])),
        ({"local_block_table": [4, 5, 6, 7, 13, 0, 9, 0]}, ([], [""])),
    ],
)
def test_flash_attention_gets_the_pages_of_each_chunk(
    changed: dict[str, list[int]], wrong: tuple[list[str], list[str]]
) -> None:
    assert wrong_in_chunks(**changed) == wrong


SPANS = (2, 5), (0, 8)
"""Two prompts, the first after two cached tokens. Rank 1 of 2 computes the parts marked below.

    | positions of the first | 2 3 [4] [5] 6     | of the second | 0 1 [2 3 4 5] 6 7 |
    | places in the batch    | 0 1 [2] [3] 4     |               | 5 6 [7 8 9 10] 11 12 |
"""

SPLIT: dict[str, Any] = {
    "split_list": [2, 1, 1, 1, 2, 2, 2, 2],
    "zigzag_index": [1, 5, 2, 6],
    "reverse_split_len": [2, 2, 1, 2, 1, 2, 1, 2],
    "cp_reverse_index": [0, 4, 6, 2, 1, 5, 7, 3],
    "kv_len_prev_tensor": torch.tensor([5, 4]),
    "kv_len_next_tensor": torch.tensor([6, 6]),
    "cu_seqlens_q_prev_tensor": torch.tensor([0, 1, 3]),
    "cu_seqlens_q_next_tensor": torch.tensor([0, 1, 3]),
}
"""What rank 1 of 2 gets for them."""


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("split_list", SPLIT["split_list"], []),
        ("split_list", [1, 2, *SPLIT["split_list"][2:]], ["zigzag_index"]),
        ("zigzag_index", [1, 5, 2, 9], ["zigzag_index"]),
        ("reverse_split_len", [*SPLIT["reverse_split_len"][::-1]], ["cp_reverse_index"]),
        ("cp_reverse_index", [0, 4, 7, 2, 1, 5, 6, 3], ["cp_reverse_index"]),
        ("kv_len_next_tensor", torch.tensor([4, 6]), ["kv_len_next_tensor"]),
        ("cu_seqlens_q_prev_tensor", torch.tensor([0, 2, 3]), ["cu_seqlens_q_prev_tensor"]),
    ],
)
def test_ranks_that_split_prompts_compute_their_parts(
    name: str, value: Any, found: list[str]
) -> None:
    meta = SimpleNamespace(cache_seqlens_int32=torch.tensor([7, 8]))
    given = backend("FlashAttentionBackend", forward_metadata=meta)
    facts = given, "extend", SimpleNamespace(), rows_of(*SPANS)
    split = SimpleNamespace(**{**SPLIT, name: value}), 1, 2
    inputs = list(metadata_of(*facts, graph=False, parts=split))
    assert len(inputs) == 7
    assert stale(inputs) == found
    other = SimpleNamespace(), 1, 2  # Of another strategy.
    assert len(list(metadata_of(*facts, graph=False, parts=other))) == 1


@pytest.mark.parametrize("padded", [0, 2])
def test_what_ranks_that_split_prompts_compute_comes_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padded: int
) -> None:
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    engine.ranks, given = {"cp": (1, 2)}, list[RowValues]()
    monkeypatch.setattr(engine, "rows", lambda _, values: given.extend(values))
    whole, mine = torch.randn(13, 3), [2, 7, 8, 3, 9, 10]
    part = torch.cat([whole[mine], torch.zeros(padded, 3)])

    def gather_kv_cache(_: Any, x: Any) -> Any:
        return whole

    def shard_position_ids(_: Any, x: Any) -> Any:
        return x[[*mine[:5], 11]]

    def found(hook: Any, function: Any, x: Any) -> list[tuple[str, str | None]]:
        now: Any = Part(model=Part(drafts=False), rows=rows_of(*SPANS), split=set())
        now.rows.rows[1] = replace(now.rows.rows[1], request="b")
        engine.now = now
        hooked(hook, function, None, x)
        hooked(hook, function, None, x)  # Once for each forward.
        (judged,) = given
        given.clear()
        wrong = wrong_row.differing(judged).nonzero().flatten().tolist()
        assert judged.explain is not None
        return [(judged.requests[at], judged.explain(at)) for at in wrong]

    assert found(engine.rejoins, gather_kv_cache, part) == []
    assert len(found(engine.rejoins, gather_kv_cache, part.roll(3, 0))) == len(mine)
    other = "it is that of position 6 of request b"
    assert found(engine.parts, shard_position_ids, torch.arange(13)) == [("b", other)]


CHOSEN = {
    "cache_seqlens_int32": [5, 3],
    "cu_seqlens_k": [0, 5, 8],
    "dsa_seqlens_expanded": [4, 5, 1, 2, 3],
    "dsa_cache_seqlens_int32": [3, 3, 1, 2, 3],
    "cu_seqlens_q": [0, 2, 5],
    "dsa_cu_seqlens_k": [0, 3, 6, 7, 9, 12],
    "token_to_batch_idx": [0, 0, 1, 1, 1],
    "first key": [0, 0, 5, 5, 5],
    "last key": [4, 5, 6, 7, 8],
}
"""The metadata of two prompts, with 3 cached positions and none, whose queries read 3 keys."""


@pytest.mark.parametrize("wrong", [None, *CHOSEN])
def test_an_indexer_gets_the_keys_of_each_query(wrong: str | None) -> None:
    held = {name: torch.tensor(values) for name, values in CHOSEN.items()}
    if wrong is not None:
        held[wrong][-1] += 1
    ranges = held.pop("first key"), held.pop("last key")
    meta = SimpleNamespace(**held, indexer_k_start_end=ranges)
    given = backend("DeepseekSparseAttnBackend", forward_metadata=meta, dsa_index_topk=3)
    spans = rows_of((3, 2), (0, 3))
    inputs = list(metadata_of(given, "extend", SimpleNamespace(), spans, graph=False))
    assert {one.name for one in inputs} == set(CHOSEN)
    assert stale(inputs) == ([] if wrong is None else [wrong])
    assert not list(metadata_of(given, "target_verify", chain(2), spans, graph=True))


def test_the_tables_of_an_indexer_are_by_position_and_by_page() -> None:
    meta = SimpleNamespace(
        cache_seqlens_int32=torch.tensor([3, 1]),
        page_table_1=torch.tensor([[4, 5, 2, 0], [0, 0, 0, 0]]),
        real_page_table=torch.tensor([[2, 1], [0, 0]]),
        page_size=2,
    )
    pool: Any = SimpleNamespace(group_of=lambda sliding: "full")
    given = backend("DeepseekSparseAttnBackend", forward_metadata=meta), pool
    slots, pages = lists_of(*given, "decode", rows_of((2, 1)), 2, graph=True)
    assert slots.entries.tolist() == [4, 5, 2, 0, 0, 0]
    assert (slots.counts.tolist(), slots.page) == ([3, 1], 1)
    assert pages.entries.tolist() == [2, 1, 0, 0]
    assert (pages.counts.tolist(), pages.page) == ([2, 1], 2)
    with pytest.raises(NotRecognisedError, match="target_verify"):
        lists_of(*given, "target_verify", rows_of((2, 1)), 2, graph=True)


@pytest.mark.parametrize(("size", "found"), [(None, ["drafts"]), (3, [])])
def test_an_input_has_no_more_entries_than_its_values_unless_padding_follows(
    size: int | None, found: list[str]
) -> None:
    assert stale([expected("drafts", torch.tensor([1, 2, 3]), [1, 2], size=size)]) == found


# LoRA adapters.

OWNERS = [object(), "first", None, "second"]
RANKS = [0, 4, 0, 8]
NAMES, LENGTHS = ("first", None, "second"), (2, 1, 3)
"""The adapters of three rows, and their numbers of tokens."""


def by_row(**changes: Any) -> SimpleNamespace:
    """Return a batch with a segment per row, as the backend `triton` has it."""
    info = {"bs": 3, "num_segments": 3, "seg_lens": [2, 1, 3, 0], "seg_indptr": [0, 2, 3, 6, 6]}
    return prepared(info | {"weight_indices": [1, 2, 3, 0], "permutation": None} | changes)


def in_chunks(**changes: Any) -> SimpleNamespace:
    """Return a batch with segments of any tokens, as the backend `csgmv` has it in a graph."""
    info = {"bs": 3, "num_segments": 3, "seg_lens": [0] * 4, "seg_indptr": [0, 3, 5, 6, 6]}
    order = {"weight_indices": [3, 1, 2, 0], "permutation": [3, 4, 5, 0, 1, 2, 0]}
    return prepared(info | order | {"use_cuda_graph": True} | changes)


def prepared(info: dict[str, Any]) -> SimpleNamespace:
    given = {"use_cuda_graph": False, "lora_ranks": RANKS} | info
    held = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in given.items()}
    return SimpleNamespace(**held)


def model_of(weights: torch.Tensor) -> SglangModel:
    """Return a model whose buffers hold these weights of one layer."""
    pool = {"A_buffer": {"v_proj": [weights]}, "B_buffer": {}, "max_lora_rank": 8}
    pool |= {"buffer_id_to_uid": OWNERS, "load_lora_weight_to_buffer": None}
    manager = SimpleNamespace(memory_pool=SimpleNamespace(**pool), lora_backend=SimpleNamespace())
    unused: Any = None
    return SglangModel(unused, drafts=False, runner=parts.kept(parts.Part(lora_manager=manager)))


def judged(info: SimpleNamespace, model: SglangModel) -> set[str]:
    """Return the wrong inputs of a batch with the first adapter, none, and the second one."""
    model.runner.lora_manager.lora_backend.batch_info = info
    found = Rows(
        [Row(f"{n}", [], 0, length, {}) for n, length in enumerate(LENGTHS)], [*range(len(NAMES))]
    )
    requests = [parts.Part(rid=f"{n}", lora_id=name) for n, name in enumerate(NAMES)][::-1]
    batch = SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND"))
    return set(stale(buffers_used(Part(model=model, batch=batch, rows=found), requests)))


WRONG = {"weight_indices"}


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (by_row(), set()),
        (by_row(weight_indices=[3, 2, 1, 0]), WRONG),
        (by_row(lora_ranks=[0, 4, 4, 8]), WRONG),
        (by_row(seg_lens=[1, 1, 3, 0]), WRONG),
        (in_chunks(), set()),
        (in_chunks(seg_lens=None), set()),
        (in_chunks(seg_indptr=[0, 3, 5, 6, 4], weight_indices=[3, 1, 2, 3]), set()),
        (in_chunks(seg_indptr=[0, 3, 5, 4, 6], weight_indices=[3, 1, 2, 3]), WRONG),
        (in_chunks(permutation=[3, 4, 2, 0, 1, 5, 0]), WRONG),
    ],
)
def test_each_token_uses_the_weights_of_its_request_once(
    info: SimpleNamespace, found: set[str]
) -> None:
    """The base model is a buffer with the rank 0, or none. What a graph has room for runs, too."""
    assert judged(info, model_of(torch.ones(len(OWNERS), 8, 4))) == found


def test_an_adapter_has_the_same_weights_each_time_it_is_loaded() -> None:
    held = torch.ones(len(OWNERS), 8, 4)
    model = model_of(held)
    assert judged(by_row(), model) == set()
    held[3] = 0.5  # What is loaded for another adapter.
    model.loaded[3] = "third"
    assert judged(by_row(), model) == {"weights of an adapter"}


def test_an_adapter_that_is_unloaded_leaves_its_buffer() -> None:
    model = model_of(torch.ones(len(OWNERS), 8, 4))
    manager = model.runner.lora_manager
    manager.loras = {one: None for one in OWNERS if isinstance(one, str)}
    manager.loras.pop("first")
    assert judged(by_row(), model) == set()  # Older releases leave it there.
    manager.memory_pool.remove_lora = None
    assert judged(by_row(), model) == {"adapters in buffers"}


# The sampler.

VOCABULARY, EVERY = 8, 1 << 30


def request(name: str, output: list[int], **asked: Any) -> Part:
    """Return a request of the scheduler, whose prompt ends with token 1."""
    plain = {
        "temperature": 1.0, "top_k": EVERY, "top_p": 1.0, "min_p": 0.0,
        "sampling_seed": None,
        "logit_bias": None, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, "min_new_tokens": 0, "stop_token_ids": None,
    }  # fmt: skip
    return Part(
        rid=name,
        origin_input_ids=[0, 1],
        output_ids=output,
        retraction_count=0,
        eos_token_ids=None,
        tokenizer=Part(eos_token_id=7, additional_stop_token_ids=None),
        sampling_params=Part(**{**plain, **asked}),
    )


def a_batch() -> tuple[Part, list[Part]]:
    """Return a right SamplingBatchInfo of three requests that decode, and the requests."""
    requests = [
        request("a", [2, 2, 3, 4], temperature=0.5, top_p=0.5, frequency_penalty=0.5),
        request("b", [5], top_k=1, logit_bias={"6": 2.0}, repetition_penalty=2.0),
        request("c", [], temperature=0.9, min_p=0.25, presence_penalty=1.0, min_new_tokens=1,
                sampling_seed=7),
    ]  # fmt: skip
    added, scaled = torch.zeros(3, VOCABULARY), torch.ones(3, VOCABULARY)
    added[0, [2, 3, 4]] = torch.tensor([-1.0, -0.5, -0.5])
    scaled[1, 5] = 2.0
    added[2, 7] = -torch.inf  # A token that ends the request.
    bias = torch.zeros(3, VOCABULARY)
    bias[1, 6] = 2.0
    info = Part(
        temperatures=torch.tensor([[0.5], [1.0], [0.9]]),
        top_ks=torch.tensor([EVERY, 1, EVERY], dtype=torch.int32),
        top_ps=torch.tensor([0.5, 1.0, 1.0]),
        min_ps=torch.tensor([0.0, 0.0, 0.25]),
        sampling_seed=torch.tensor([42, 42, 7]),
        is_all_greedy=False,
        need_top_k_sampling=True,
        need_top_p_sampling=True,
        need_min_p_sampling=True,
        logit_bias=bias,
        acc_additive_penalties=added,
        acc_scaling_penalties=scaled,
        penalizer_orchestrator=None,
        vocab_size=VOCABULARY,
        from_schedule_batch=print,
        filter_batch=print,
        merge_batch=print,
        update_penalties=print,
    )
    return info, requests


def penalizers(info: Part, requests: list[Part]) -> Part:
    """Return the penalizers of a scheduler's batch, which add and scale as `info` says."""
    asked, parts = [one.sampling_params for one in requests], dict[str, Part]()
    for name, (part, _) in KEPT.items():
        held = torch.tensor([[getattr(one, part)] for one in asked])
        parts[name] = Part(is_prepared=lambda: True, **{name: held})
    return Part(
        is_required=True,
        penalizers=parts,
        accumulate_additive_penalties=lambda logits: logits.add_(info.added),
        accumulate_scaling_penalties=lambda: info.scaled,
    )


def wrong(info: Part, requests: list[Part], kept: Any = None) -> dict[str, str]:
    """Return the request of each wrong value, by name."""
    asked = [one.sampling_params for one in requests]
    values = list(rows(info, requests, asked, "decode", kept))
    found = wrong_row.judge(RowsGiven(1, "decode", "sampler", values))
    return {one.key.split(" | ")[-1]: str((one.reader or {}).get("request")) for one in found}


@pytest.mark.parametrize(
    ("broken", "name", "request_"),
    [
        (lambda info: info.temperatures[2].fill_(0.5), "temperatures", "c"),
        (lambda info: setattr(info, "is_all_greedy", True), "temperatures", "a"),
        (lambda info: info.top_ks[0].fill_(1), "top_ks", "a"),
        (lambda info: setattr(info, "max_top_k", 5), "top_ks", "a"),
        (lambda info: info.top_ps[1].fill_(0.5), "top_ps", "b"),
        (lambda info: setattr(info, "need_top_p_sampling", False), "top_ps", "a"),
        (lambda info: setattr(info, "need_min_p_sampling", False), "min_ps", "c"),
        (lambda info: info.sampling_seed[0].fill_(7), "sampling_seed", "a"),
        (lambda info: setattr(info, "logit_bias", None), "logit_bias", "b"),
        (lambda info: info.logit_bias[0, 6].fill_(2.0), "logit_bias", "a"),
        (lambda info: info.acc_additive_penalties[1, 2].fill_(-1.0), OF_TOKENS, "b"),
        (lambda info: info.acc_additive_penalties[0, 2].fill_(-1.25), OF_TOKENS, "a"),
        (lambda info: info.acc_additive_penalties[0].zero_(), OF_TOKENS, "a"),
        (lambda info: info.acc_additive_penalties[0, 7].fill_(-torch.inf), OF_ENDS, "a"),
        (lambda info: info.acc_additive_penalties[2, 6].fill_(-torch.inf), OF_ENDS, "c"),
        (lambda info: info.acc_scaling_penalties[0, 5].fill_(2.0), "acc_scaling_penalties", "a"),
        (lambda info: info.acc_scaling_penalties[1, 5].fill_(1.5), "acc_scaling_penalties", "b"),
    ],
)  # fmt: skip
def test_a_row_with_another_value_is_found(
    broken: Callable[[Any], object], name: str, request_: str
) -> None:
    info, requests = a_batch()
    assert wrong(info, requests) == {}
    broken(info)
    found = wrong(info, requests)
    assert found.pop(name) == request_
    assert set(found) <= {"top_ks"}  # A batch that is taken for greedy takes the likeliest token.


def test_the_tokens_and_logits_of_a_sampler_are_those_of_each_request() -> None:
    names = "logit_bias", "frequency_penalty", "presence_penalty", "min_new_tokens", "min_p"
    asked = Part(**dict.fromkeys(names, 0), repetition_penalty=1.0, temperature=2.0)
    asked.top_k, asked.top_p, asked.logit_bias = 1, 1.0, {"3": 2.0}
    plain = Part(**{**vars(asked), "logit_bias": None, "top_k": 1 << 30})
    mine = [Part(rid="a", sampling_params=asked), Part(rid="b", sampling_params=plain)]
    raw = torch.rand(2, VOCABULARY)
    held = raw.clone()
    held[0, 3] += 2
    assert not next(map(wrong_row.differing, biased(mine, raw, held))).any()
    assert next(map(wrong_row.differing, biased(mine, raw, held.flip(0)))).all()
    other = {"min_new_tokens": 1, "frequency_penalty": 1, "repetition_penalty": 1.1}
    for part, value in other.items():
        some = Part(rid="a", sampling_params=Part(**{**vars(plain), part: value}))
        assert not [*biased([some], raw, held)], "its penalties are judged elsewhere"
    assert not [*biased([Part(rid="a", sampling_params=plain, grammar=1)], raw, held)]
    (judged,) = allowed_tokens(mine, [asked, plain], held, [[3], [5]])
    assert not wrong_row.differing(judged).any()
    (judged,) = allowed_tokens(mine, [asked, plain], held, [[4], [5]])
    assert wrong_row.differing(judged).tolist() == [True, False]
    mine[0].custom_logit_processor = "a"
    (judged,) = allowed_tokens(mine, [asked, plain], held, [[4], [5]])
    assert judged.requests == ["b"]
    given = mine, [asked, plain], held, [[3], [5]]
    assert likelihoods(*given, heats=True) is None
    mine[1].return_logprob = True
    for heats, temperature in ((True, 2.0), (False, 1.0)):
        right = (held / temperature).log_softmax(1)
        assert likelihoods(*given, heats=heats) == [[None], [right[1, 5]]]


@pytest.mark.parametrize("nested", [False, True])
def test_log_likelihoods_belong_to_the_last_tokens_of_a_request(nested: bool) -> None:
    given = {"output_token_logprobs_val": [-1.0, -2.0]}
    own = {"logprob": Part(**given)} if nested else given
    request = Part(origin_input_ids=[1, 2, 3], output_ids=[4, 5], **own)
    assert listed(request, [2, 4, 5]) == {4: -2.0}
    request.output_ids.append(6)
    assert listed(request, [4]) == {}


def test_what_the_penalizers_keep_and_apply_is_judged_without_overlap() -> None:
    info, requests = a_batch()
    info.added, info.scaled = info.acc_additive_penalties, info.acc_scaling_penalties
    info.acc_additive_penalties = info.acc_scaling_penalties = None
    info.penalizer_orchestrator = given = penalizers(info, requests)
    assert wrong(info, requests, given) == {}
    info.added[1, 2], info.scaled[0, 5] = -1.0, 2.0
    assert wrong(info, requests, given) == {OF_TOKENS: "b", "acc_scaling_penalties": "a"}


@pytest.mark.parametrize("overlap", [False, True])
def test_each_token_is_counted_once_without_overlap(overlap: bool) -> None:
    info, requests = a_batch()
    info.acc_additive_penalties[0, 2] = -0.5  # Two tokens count as one.
    info.acc_scaling_penalties[1, 5] = 1.0
    if not overlap:
        info.added, info.scaled = info.acc_additive_penalties, info.acc_scaling_penalties
        info.acc_additive_penalties = info.acc_scaling_penalties = None
        info.penalizer_orchestrator = penalizers(info, requests)
    found = {} if overlap else {OF_TOKENS: "a", "acc_scaling_penalties": "b"}
    assert wrong(info, requests) == found
    for one in requests:
        one.retraction_count = 1  # Its earlier tokens do not count.
    assert wrong(info, requests) == {}


@pytest.mark.parametrize("name", KEPT)
def test_a_penalizer_with_the_rows_of_another_batch_is_found(name: str) -> None:
    info, requests = a_batch()
    given = penalizers(info, requests)
    part = given.penalizers[name]
    for wrong_rows in (getattr(part, name).roll(1, 0), getattr(part, name)[1:]):
        setattr(part, name, wrong_rows)
        assert name in wrong(info, requests, given)
    given.is_required = False
    assert {*wrong(info, requests, given)} == {*KEPT}


@pytest.mark.parametrize(("late", "right"), [(-1, True), (1, True), (-2, False), (2, False)])
def test_the_number_of_tokens_of_a_row_with_a_minimum_is_that_of_its_request(
    late: int, right: bool
) -> None:
    info, requests = a_batch()
    requests[2].output_ids = [2, 2, 3]
    given = penalizers(info, requests)
    counts = torch.tensor([[9], [9], [3 + late]])  # Only the last one has a minimum.
    given.penalizers["min_new_tokens"].len_output_tokens = counts
    info.added, info.scaled = info.acc_additive_penalties, info.acc_scaling_penalties
    info.acc_additive_penalties = info.acc_scaling_penalties = None
    info.added[2] = 0.0
    info.added[2, [2, 3]] = -1.0
    assert wrong(info, requests, given) == {}  # The engine overlaps.
    info.penalizer_orchestrator = given
    assert wrong(info, requests, given) == ({} if right else {COUNTED: "c"})


def sampled(engine: SglangEngine) -> dict[str, dict[int, int]]:
    """Return the tokens that were noted as sampled, by request and position."""
    made = engine.recording.made.items()
    return {name: {at: one[-1].token for at, one in places.items()} for name, places in made}


@pytest.mark.parametrize("repeated", [False, True])
def test_each_draft_has_the_penalties_of_its_own_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    given, added = list[RowValues](), torch.tensor([[1.0], [2.0], [4.0]])
    monkeypatch.setattr(engine, "rows", lambda _, values: given.extend(values))
    logits, mask = torch.randn(6, VOCABULARY), Part(apply=lambda all_: all_[1:3].zero_())
    batch = Part(
        reqs=[Part(rid=name) for name in "abc"],
        sampling_info=Part(apply_logits_bias=lambda rows: rows.add_(added)),
    )

    def original(_: Any, batch: Any, output: Any, mask: Any) -> Any:
        logits.add_(added.repeat(2, 1) if repeated else added.repeat_interleave(2, 0))
        mask.apply(logits)
        return torch.tensor([9, 8, 7, 6, 5, 4]), None, torch.tensor([[0, 1], [3, -1], [4, 5]])

    output, engine.places = Part(next_token_logits=logits), {"a": 5, "b": 2, "c": 9}
    hooked(engine.verifies, original, Part(draft_token_num=2), batch, output, mask)
    engine.unwatched = True  # Then the logits are not copied.
    hooked(engine.verifies, lambda *_: None, Part(draft_token_num=2), batch, output, mask)
    (judged,) = given
    wrong = [judged.requests[row] for row in wrong_row.differing(judged).nonzero().flatten()]
    assert wrong == (["b", "c"] if repeated else [])
    assert sampled(engine) == {"a": {5: 9, 6: 8}, "b": {2: 6}, "c": {9: 5, 10: 4}}


@pytest.mark.parametrize(("kind", "drafted"), [("decode", 1), ("target_verify", 2)])
def test_the_sampler_gets_the_logits_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, drafted: int
) -> None:
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    engine.requests, given = [], list[RowValues]()
    monkeypatch.setattr(engine, "rows", lambda _, values: given.extend(values))
    logits = torch.randn(3 * drafted + 1, VOCABULARY)  # With a padded row.
    now: Any = Part(
        forward=Part(kind=kind),
        batch=Part(spec_info=Part(draft_token_num=drafted)),
        rows=Part(rows=[Part(request=name, cached=4, computed=1) for name in "aabc"]),  # A tree.
    )
    tokens = torch.tensor([7, 8, 9])
    for handed, found in ((logits, []), (logits.roll(drafted, 0), [*range(3 * drafted)])):
        engine.computed(now, logits)
        hooked(engine.samples, lambda *_: tokens, None, Part(next_token_logits=handed))
        (judged,) = given
        assert wrong_row.differing(judged).nonzero().flatten().tolist() == found
        given.clear()
    assert sampled(engine) == {"a": {5: 7}, "b": {5: 8}, "c": {5: 9}}
    given.clear()
    requests = [Part(rid=name, origin_input_ids=[0] * 5, output_ids=[9]) for name in "bc"]
    hooked(engine.records, lambda *_: None, None, Part(reqs=requests), None)
    (tokens_of,) = given
    assert (tokens_of.held.tolist(), tokens_of.right.tolist()) == ([9, 9], [8, 9])
    given.clear()
    assert judged.explain is not None
    assert judged.explain(drafted) == "it is that of request a"
    engine.requests = [Part(rid="a")]
    hooked(engine.samples, lambda *_: tokens, None, Part(next_token_logits=logits))
    assert sampled(engine) == {}
    assert [one.untried for one in given] == [UNSEEN]


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_model_gets_the_embeddings_of_the_images_of_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int, passed: bool
) -> None:
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    given, image = list[RowValues](), torch.rand(3, 4)
    monkeypatch.setattr(engine, "rows", lambda _, values: given.extend(values))
    given_as = "feature" if passed else "precomputed_embeddings"
    item = Part(**{given_as: image}, offsets=[(1, 3)])
    engine.requests = [Part(rid="a", multimodal_inputs=Part(mm_items=[item])), Part(rid="b")]
    rows = [
        Row("b", [], 0, 1, {}),
        Row("a", [], 2, 2, {}),
    ]  # The image is cut after its first token.
    vision = torch.nn.Identity() if passed else None
    runner = Part(model=Part(visual=vision))
    engine.now = Part(model=Part(drafts=False, runner=runner), rows=Part(rows=rows))
    hooked(engine.embeds, lambda *_: torch.cat([image[:1], image[1 - wrong :][:2]]))
    (judged,) = given
    assert wrong_row.differing(judged).tolist() == [bool(wrong)] * 2


def test_no_token_of_an_image_is_penalised() -> None:
    info, requests = a_batch()
    requests[0].origin_input_ids = [9, 10**18]
    assert wrong(info, requests) == {}


def test_a_graph_may_hold_any_ids_of_images() -> None:
    runner = Part(model_runner=Part(model_config=Part(vocab_size=8)))
    ids, held = torch.tensor([1, 10**18, 2]), torch.tensor([1, 7, 3, 0])
    assert without_images(ids, held, runner).tolist() == [1, 7, 2]


@pytest.mark.parametrize("mode", ["EXTEND", "DECODE"])
@pytest.mark.parametrize("late", [0, 1])
def test_hidden_states_are_recorded_for_the_request_whose_tokens_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, late: int
) -> None:
    """The first request asks for none, and the second one only for the last ones."""
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    given = list[RowValues]()
    monkeypatch.setattr(engine, "rows", lambda _, values: given.extend(values))
    sizes = [3, 1, 2, 4] if mode == "EXTEND" else [1] * 4
    ends = [sum(sizes[: at + 1]) - late * (at == 2) for at in range(4)]
    known = torch.randn(sum(sizes), 4)
    asked = zip("abcd", (False, "last", True, True), strict=True)
    requests = [
        Part(rid=one, return_hidden_states=how, hidden_states=[[0.0] * 4]) for one, how in asked
    ]
    batch = Part(reqs=requests, forward_mode=Part(name=mode), extend_lens=sizes)

    def record(*_: Any) -> None:
        for request, end, size in zip(requests[1:], ends[1:], sizes[1:], strict=True):
            mine = known[end - size : end].tolist()
            request.hidden_states += [mine] if mode == "EXTEND" else mine

    with monkeypatch.context() as without:
        without.setattr(engine, "recording", Part(made={}, recorded=lambda *_: ()))
        result = Part(logits_output=Part(hidden_states=known))
        hooked(engine.records, record, None, batch, result)
    (judged,) = given
    wrong = wrong_row.differing(judged).nonzero().flatten().tolist()
    assert judged.requests == ["c"] * sizes[2] + ["d"] * sizes[3]
    assert wrong == [*range(sizes[2])][: late * sizes[2]]
    assert judged.explain is not None
    assert not late or judged.explain(0) == "it is that of token 0 of request b"
    kept = Recorded.of(batch, Part(logits_output=Part(hidden_states=known.repeat(2, 1))))
    assert kept is not None
    record()
    (judged,) = kept.values()
    assert judged.untried
    assert judged.requests == ["c", "d"]


def test_the_ends_of_a_request_are_masked_until_it_has_enough_tokens() -> None:
    info, requests = a_batch()
    requests[2].sampling_params.min_new_tokens = 9
    assert wrong(info, requests) == {}
    info.acc_additive_penalties[2, 7] = 0.0
    assert wrong(info, requests) == {OF_ENDS: "c"}


@pytest.mark.parametrize(
    "known",
    [{"retraction_count": 1}, {"retraction_count": 1, "extend_end": 7}, {"spec_verify_ct": 1}],
)
def test_a_known_wrong_count_explains_one_mask_of_ends(known: dict[str, int]) -> None:
    info, requests = a_batch()
    requests[2].output_ids = [5] * 6
    requests[2].sampling_params.presence_penalty = 0.0
    assert wrong(info, requests) == {OF_ENDS: "c"}
    for name, value in known.items():
        setattr(requests[2], name, value)
    assert wrong(info, requests) == {"acc_additive_penalties": "c"}
    info.acc_additive_penalties[2, 6] = -torch.inf
    assert wrong(info, requests) == {"acc_additive_penalties": "c", OF_ENDS: "c"}
    vars(requests[2]).update(retraction_count=1, extend_end=2, spec_verify_ct=0)
    assert wrong(info, requests) == {OF_ENDS: "c"}


def test_prompts_have_the_logits_and_log_likelihoods_of_their_own_tokens() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 4), torch.randn(VOCABULARY + 2, 4)
    tokens = [[9, 1, 2, 3], [4, 5]]
    spans = [(1, 3), (0, 2)]
    found = Rows()
    for at, (mine, span) in enumerate(zip(tokens, spans, strict=True)):
        found.add(at, Row("ab"[at], mine, *span, {}))
    logits = 2 * (hidden @ weight.T / 2).tanh()[:, :VOCABULARY]
    likely = logits.log_softmax(1)
    # The first prompt asks for all of the chunk, and the token after it is not known.
    right = torch.stack([likely[0, 2], likely[1, 3], likely[2, 0], likely[3, 5], likely[4, 0]])
    given = Part(next_token_logits=logits[[2, 4]], input_token_logprobs=right)
    requests = [Part(rid=name, origin_input_ids=[0] * 4) for name in "ab"]
    head = Part(weight=weight)
    processor, batch = Part(final_logit_softcapping=2), Part(extend_logprob_start_lens_cpu=[0, 0])

    def judged() -> list[str]:
        values = list(of_prompts(processor, hidden, head, batch, given, found, requests))
        judged = wrong_row.judge(RowsGiven(1, "extend", "logits", values))
        return [one.key.split(" | ")[-1] for one in judged]

    assert judged() == []
    given.input_token_logprobs = right.roll(1)
    assert judged() == ["log-likelihoods", "log-likelihoods"]
    requests[1].origin_input_ids = [0]  # Its second token is output.
    assert judged() == ["log-likelihoods"]
    found.rows[0] = Row("a", [9, 1, -7, 3], 1, 3, {})  # -7 is part of an image.
    given.input_token_logprobs = right.index_fill(0, torch.tensor([1]), 5.0)
    assert judged() == ["log-likelihoods"]
    given.input_token_logprobs = right.index_fill(0, torch.tensor([0]), 5.0)
    assert judged() == []
    given.input_token_logprobs, given.next_token_logits = None, logits[[2, 3]]
    assert judged() == ["logits of prompts"]


@pytest.mark.parametrize(("taken", "evicted", "found"), [(16, 0, 0), (0, 0, 1), (32, 16, 0)])
def test_the_scheduler_expects_the_slots_that_decoding_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, evicted: int, found: int
) -> None:
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    pool = Part(size=64, check_decode_capacity=print)
    pool.available_size = lambda: pool.size
    batch = Part(
        token_to_kv_pool_allocator=pool,
        tree_cache=Part(held=32),
        spec_algorithm=Part(is_none=lambda: True),
        new_tokens_required_next_decode=lambda: 16,
        reqs=[Part(rid="a"), Part(rid="b")],
    )
    monkeypatch.setattr(engine, "sizes", lambda cache, _: [cache.held])
    given = list[RowValues]()
    monkeypatch.setattr(engine, "rows", lambda _, values: given.extend(values))

    def original(_: Any) -> None:
        pool.size -= taken
        batch.tree_cache.held -= evicted

    hooked(engine.decodes, original, batch)
    judged = wrong_row.judge(RowsGiven(1, "decode", "scheduler", given))
    assert len(list(judged)) == found


def test_a_request_keeps_the_parameters_of_its_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SglangEngine("0", Journal(tmp_path / "process-1.jsonl"), Settings(str(tmp_path)))
    info, given = a_batch()
    requests: list[Any] = [type("Request", (), vars(one))() for one in given]
    for row, one in enumerate(requests):
        one.req_pool_idx = row
    batch, found = Part(req_pool_indices=torch.arange(3), sampling_info=info), list[RowValues]()
    monkeypatch.setattr(engine, "rows", lambda _, values, by: found.extend(values))
    for _ in range(2):
        engine.requests = requests
        engine.judge_rows(batch, "decode")
        requests[0].sampling_params.temperature = 1.0  # As if retraction reset it.
    held = [one.right.tolist() for one in found if one.name == "temperatures"]
    assert held == [pytest.approx([0.5, 1.0, 0.9])] * 2


def test_a_token_may_be_counted_late_and_the_end_of_a_prompt_with_them() -> None:
    info, requests = a_batch()
    info.acc_additive_penalties[0, [1, 4]] = torch.tensor([-0.5, 0.0])
    info.acc_scaling_penalties[1, [1, 5]] = torch.tensor([2.0, 1.0])
    assert wrong(info, requests) == {}
    requests[0].retraction_count = 1  # Earlier tokens are then no longer counted.
    info.acc_additive_penalties[0].zero_()
    assert wrong(info, requests) == {}


@pytest.mark.parametrize(
    ("ids", "wrong"), [([7, 1, 9, 2], []), ([9, 1, 7, 2], [0, 1]), ([7, 1, 8, 2], [1])]
)
def test_drafts_begin_with_the_last_token_of_their_request(
    ids: list[int], wrong: list[int]
) -> None:
    asked = [("a", [5, 6], [7]), ("b", [8], [9]), ("c", [4], [])]
    requests = [parts.request(name, 1, prompt, output) for name, prompt, output in asked]
    batch = parts.decode([1, 2, 3], [2, 1, 1], [*ids, 3, 3], [1, 2, 3])
    batch.spec_info = type("EagleVerifyInput", (Part,), {})(draft_token_num=2)
    given, late = roots(batch, requests)  # The host does not know the last one of the third yet.
    assert wrong_row.differing(given).nonzero().flatten().tolist() == wrong
    assert late.requests == ["c"]
    assert late.untried == "the host does not know the last token yet"
    batch.spec_info.ragged_verify_layout = object()
    (of_ragged,) = roots(batch, requests)
    batch.spec_info = Part(draft_token_num=2)  # Drafts of another kind may begin otherwise.
    (of_others,) = roots(batch, requests)
    assert of_ragged.untried == of_others.untried == "the kind of drafts is not known"


@pytest.mark.parametrize(
    ("held", "kind", "counts", "found"),
    [
        (3, "decode", True, []),
        (4, "decode", True, ["num_token_non_padded"]),  # Of the graph before.
        (4, "decode", False, []),  # Nothing reads it.
        (4, "target_verify", True, []),  # A tree has a row per branch.
        (1, "idle", True, ["num_token_non_padded"]),
    ],
)
def test_experts_leave_out_all_tokens_but_those_of_rows(
    held: int, kind: str, counts: bool, found: list[str]
) -> None:
    runner = SimpleNamespace(buffers=SimpleNamespace(num_token_non_padded=torch.tensor(held)))
    batch = SimpleNamespace(global_num_token_non_padded=torch.tensor(4) if counts else None)
    rows = () if kind == "idle" else rows_of((4, 1), (2, 1), (7, 1)).rows
    assert stale(counted(runner, batch, Forward(kind, tuple(rows)))) == found
