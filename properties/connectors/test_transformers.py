"""What the connector of transformers says of a paged cache and of its batches."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors import following, hooking
from paritybit.connectors.transformers.batch import (
    PlannedRequest,
    TransformersBatch,
    asked_of,
    implied_inputs,
    inputs_by_name,
    lists_of,
    rows,
    unordered,
)
from paritybit.connectors.transformers.cache import free_and_cached, groups_of, on_host, parts_of
from paritybit.connectors.transformers.engine import FollowedCache
from paritybit.connectors.transformers.hooks import Hooks
from paritybit.testing.replays import InMemory
from paritybit.watch.checks import wrong_row
from paritybit.watch.checks.stale_input import judge as stale
from paritybit.watch.facts import Forward, Row, StaticInput
from paritybit.watch.journal import Finding
from paritybit.watch.observations import Inputs, RowsGiven
from paritybit.watch.settings import Settings
from properties.connectors import parts
from properties.connectors.parts import hooked

PAGE, WINDOW, WIDTH = 4, 4, 2
FULL, SLIDING = "full_attention", "sliding_attention"
TRASH = {FULL: 3 * 8, SLIDING: 24}
"""Indices at which the second sector begins. A sector has 3 full blocks, or one of windows."""


def allocator(index: int, layers: int, flat: Tensor, **more: Any) -> parts.Part:
    """Return an allocator whose blocks have a page per layer, K before V."""
    rows, per_sector = 2 * layers * PAGE, 3 // layers
    views = {
        number: (flat[2 * number * PAGE :], flat[(2 * number + 1) * PAGE :])
        for number in range(layers)
    }
    return parts.Part(
        index=index,
        tokens_per_page=PAGE,
        block_physical_stride=rows,
        num_blocks=4 * per_sector,
        blocks_per_sector=per_sector,
        read_trash_index=0,
        sentinel_index=1,
        write_trash_index=rows * per_sector,
        layer_indices=list(range(layers)),
        _kv_token_views=views,
        block_table={},
        ledger=SimpleNamespace(cached_blocks={}, shared_ref_counts={}, block_to_hash={}),
        **more,
    )


def a_cache() -> Any:
    """Return a cache of six sectors, two of which are for padding."""
    flat = torch.zeros(6 * 24, 1, WIDTH)
    kinds = {
        FULL: allocator(0, 1, flat),
        SLIDING: allocator(1, 3, flat, sliding_window=WINDOW),
    }
    trees = [SimpleNamespace(trees={2: [6, 8]}), SimpleNamespace(trees={})]
    pool = SimpleNamespace(_free_blocks=trees, free_sectors=[4, 5])
    return parts.kept(parts.Part(cache_allocators=kinds, pool=pool))


def test_a_slot_is_the_place_of_a_token_in_each_layer_of_its_kind() -> None:
    mine = parts_of(a_cache())
    full, sliding = groups_of(mine)
    assert (full.window, sliding.window) == (None, WINDOW)
    assert mine[SLIDING].slots(torch.tensor([24 * 3 + 2, 24 * 3 + 4, -1])).tolist() == [14, -1, -1]
    for number, layer in enumerate(sliding.layers):
        layer.tensors[1][3, 2] = 7.0
        assert mine[SLIDING].allocator._kv_token_views[number][1][24 * 3 + 2].tolist() == [[7, 7]]
    # The trash of the other kind lies in this one's second sector, too.
    assert full.reserved >= {0, 1, 12, 16, 20}


def test_a_sector_of_another_kind_is_free_and_a_lost_block_is_not() -> None:
    cache = a_cache()
    cache.cache_allocators[FULL].ledger.cached_blocks = {7: None}
    cache.cache_allocators[SLIDING].block_table = {"a": [3]}
    found = free_and_cached(parts_of(cache), cache.pool)
    free = set((found[FULL][0] // PAGE).tolist())
    assert free == {6, 8, 9, 10, 11, *range(12, 18)}
    assert set((found[FULL][1] // PAGE).tolist()) == {7}
    assert set((found[SLIDING][0] // PAGE).tolist()) == {2, 4, 5}


@pytest.mark.parametrize(("blocks", "free"), [([2, 3], {0, 1, 2}), ([3], {0, 2}), ([3, 3], {0, 2})])
def test_a_sector_on_the_host_is_free_if_all_of_its_blocks_are(
    blocks: list[int], free: set[int]
) -> None:
    kinds = [
        SimpleNamespace(trees={1: blocks}, elems_per_tree=2),
        SimpleNamespace(trees={2: [2]}, elems_per_tree=1),
    ]
    (found,) = on_host(
        SimpleNamespace(_free_blocks=kinds, free_sectors=[0], num_sectors=3)
    ).values()
    assert (found.size, set(found.free.tolist())) == (3, free)


@pytest.mark.parametrize(("come_back", "found"), [([6, 7], set()), ([7, 6], {"corrupted read"})])
def test_what_comes_back_from_the_host_is_what_went_there(
    come_back: list[int], found: set[str]
) -> None:
    cache, journal = a_cache(), InMemory(Path())
    engine, table = FollowedCache(cache, "5", journal, Settings("")), {FULL: [8, 9]}
    full = engine.parts[FULL]
    ((keys, values),) = full.allocator._kv_token_views.values()
    manager: Any = SimpleNamespace(_request_id_to_cpu_blocks={"a": {FULL: [1, 3]}})
    state = SimpleNamespace(request_id="a", is_cpu_offloaded=True)

    def forward(cached: int, blocks: list[int]) -> None:
        slots = {FULL: full.of_blocks(blocks)[: cached + 1]}
        row = Row("a", list(range(20)), cached, 1, slots, spare=1)
        engine.watcher.begin(Forward("decode", (row,)))
        engine.watcher.end()

    def page(block: int) -> slice:
        return slice(block * full.rows, block * full.rows + PAGE)

    for block in (8, 9):
        keys[page(block)] = values[page(block)] = float(block)
    forward(0, [8, 9])
    engine.watcher.forget(FULL, full.of_blocks([8, 9]))
    forward(6, [8, 9])
    hooked(engine.store, lambda *_: {"a"}, manager, [state], {"a": table})
    full.allocator.block_table["a"] = [6, 7]

    def copy(*_: object) -> None:
        for source, target in zip((8, 9), come_back, strict=True):
            keys[page(target)], values[page(target)] = keys[page(source)], values[page(source)]

    hooked(engine.load, copy, manager, [SimpleNamespace(state=state)])
    forward(7, [6, 7])
    assert {one.check for one in journal.found} == found
    assert journal.unsure == []


def a_batch(**changes: Any) -> TransformersBatch:
    """Return a batch of two requests: one decodes at position 5, one computes two first tokens."""
    first = SimpleNamespace(request_id="a", initial_tokens=[1, 2, 3, 4, 5], generated_tokens=[])
    other = SimpleNamespace(request_id="b", initial_tokens=[6, 7, 8], generated_tokens=[])
    full = [[*range(48, 52), 56, 57], [64, 65]]
    ring = [74, 75, 72]  # Position 5 is written over position 1, which left the window.
    allowed = torch.zeros(2, 8, 12, dtype=torch.bool)
    allowed[0, 0, :6] = allowed[0, 1, 6] = True
    allowed[0, 2, 6:8] = True
    allowed[1, 0, :4] = allowed[1, 1, 4] = True
    allowed[1, 2, 4:6] = True
    masks = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[:, None, None]
    given = {
        "input_ids": torch.zeros(1, 8, dtype=torch.int32),
        "position_ids": torch.zeros(1, 8, dtype=torch.int32),
        "cu_seq_lens_q": torch.tensor([0, 1, 3, 3]),
        "cu_seq_lens_k": {FULL: torch.tensor([0, 6, 8]), SLIDING: torch.tensor([0, 4, 6])},
        "logits_indices": torch.tensor([0, 0]),
        "read_index": [
            torch.tensor([*full[0], *full[1], 0, 0, 0, 0]),
            torch.tensor([*ring, 1, 1, 1, 0, 0, 0, 0, 0, 0]),
        ],
        "write_index": [
            torch.tensor([57, 64, 65, *[TRASH[FULL]] * 5]),
            torch.tensor([73, 96, 97, *[TRASH[SLIDING]] * 5]),
        ],
        "attention_mask": {FULL: masks[0], SLIDING: masks[1]},
        **changes,
    }
    planned = [PlannedRequest(first, 5, 1, True), PlannedRequest(other, 0, 2, False)]
    return TransformersBatch(planned, given, parts_of(a_cache()))


def test_a_row_has_the_slots_that_the_lists_name() -> None:
    batch = a_batch()
    rows = batch.rows()
    assert (batch.kind, batch.size, batch.padded) == ("prefill", 3, 8)
    assert rows[0].tokens == [1, 2, 3, 4, 5, None]
    assert rows[0].slots[FULL].tolist() == [24, 25, 26, 27, 28, 29]
    assert rows[0].slots[SLIDING].tolist() == [-1, -1, 14, 15, 12, 13]
    assert rows[1].slots[SLIDING].tolist() == [16, 17]
    assert batch.written()[FULL].tolist() == [29, 32, 33]
    full, sliding = lists_of(batch)
    assert full.counts.tolist() == [6, 2, 4]
    assert (sliding.counts.tolist(), sliding.offsets.tolist()) == ([3, 0, 6], [0, 4, 6])


def wrong(batch: TransformersBatch) -> set[str]:
    """Return the names of the arguments that are not what the batch implies."""
    return {
        str(finding.cause["input"]) for finding in judged(implied_inputs(batch)) if finding.cause
    }


def judged(inputs: Iterable[StaticInput]) -> list[Finding]:
    """Return what is found where inputs do not hold what they must."""
    found = Inputs(1, Forward("", ()), "batch", list(inputs), {})
    return list(stale(found))


def test_arguments_of_the_model_follow_from_the_batch() -> None:
    assert wrong(a_batch()) == set()
    assert wrong(a_batch(logits_indices=torch.tensor([1, 0]))) == {"logits_indices"}
    batch = a_batch()
    batch.given["write_index"][0][4] = 48
    batch.given["read_index"][1][3] = 72
    batch.given["attention_mask"][SLIDING][0, 0, 2, 3] = 0.0
    assert wrong(batch) == {
        f"write_index[{FULL}] (padding)",
        f"new tokens in read_index[{SLIDING}]",
        f"attention_mask[{SLIDING}]",
    }


@pytest.mark.parametrize(
    ("name", "stale"),
    [
        ("input_ids", lambda given: given["input_ids"][0, 7:]),
        ("position_ids", lambda given: given["position_ids"][0, 3:4]),
        ("cu_seq_lens_q", lambda given: given["cu_seq_lens_q"][3:]),
        ("logits_indices", lambda given: given["logits_indices"][1:]),
        (f"cu_seq_lens_k[{FULL}]", lambda given: given["cu_seq_lens_k"][FULL][3:]),
        (f"write_index[{SLIDING}]", lambda given: given["write_index"][1][5:6]),
        (f"attention_mask[{FULL}]", lambda given: given["attention_mask"][FULL][0, 0, 3:4, 2:3]),
    ],
)
def test_what_an_earlier_batch_left_in_padding_is_found(
    name: str, stale: Callable[[Any], Tensor]
) -> None:
    batch = a_batch()
    ends = {kind: torch.cat((one, one[-1:])) for kind, one in batch.given["cu_seq_lens_k"].items()}
    batch = a_batch(cu_seq_lens_k=ends)
    assert wrong(batch) == set()
    left = stale(batch.given)
    left.copy_(torch.zeros_like(left) if "mask" in name else left + 1)
    assert wrong(batch) == {f"{name} (padding)"}


class Processor(SimpleNamespace):
    """A logits processor with an argument per request."""

    min_tokens_to_keep = 2

    def prepare_tensor_args(self, requests: Any) -> Tensor:
        """Return the argument."""
        raise NotImplementedError


@pytest.mark.parametrize(("computed", "found"), [(2, 0), (0, 1)])
def test_a_request_that_computes_no_token_has_no_logits(computed: int, found: int) -> None:
    batch = a_batch(logits_indices=torch.tensor([0, computed]))
    first, other = batch.requests
    batch.requests = [first, replace(other, computed=computed, predicted=True)]
    laws = [one for one in implied_inputs(batch) if one.name == "logits_indices"]
    assert len(judged(laws)) == found


def test_the_arguments_of_logits_processors_are_those_of_the_rows_that_are_sampled() -> None:
    heat = Processor(temperature=1.0, supported_kwargs={"temperature": float})
    best = Processor(top_k=5, supported_kwargs={"top_k": int})
    processors = SimpleNamespace(
        logits_processor=[heat, object(), best], prepare_tensor_args=heat.prepare_tensor_args
    )
    mine = (
        ("a", {"temperature": 0.5, "top_k": 1}, True),
        ("b", {"temperature": 0.9}, False),  # A chunk of its prompt: it samples nothing.
        ("c", {"top_k": 7}, True),
    )
    planned = [
        PlannedRequest(
            SimpleNamespace(request_id=name, logit_processor_kwargs=asked), 1, 1, predicted
        )
        for name, asked, predicted in mine
    ]

    def found(*heats: float) -> set[str]:
        bits = torch.tensor([*heats, 9.0]).view(torch.int32)
        given = {"logits_processor_args": torch.stack((bits, torch.tensor([2, 7, 9]).int()))}
        batch: Any = SimpleNamespace(requests=planned, given=given)
        values = RowsGiven(1, "decode", "logits processors", list(rows(batch, processors)))
        return {one.text for one in wrong_row.judge(values)}

    assert found(0.5, 1.0) == set()
    (text,) = found(0.5, 0.9)
    assert "temperature of request c (row 1) is 0.9, not 1" in text


def test_a_request_that_is_queued_again_has_the_parameters_that_its_client_gave() -> None:
    hooks: Any = None
    first = SimpleNamespace(logit_processor_kwargs={"top_k": 7})
    for _ in range(2):
        without: Any = lambda _: SimpleNamespace(logit_processor_kwargs={})  # noqa: E731
        again = hooked(functools.partial(Hooks.reset, hooks), without, first)
        assert asked_of(again) == {"top_k": 7}
        first = again


def test_what_is_read_before_it_is_written_is_stale() -> None:
    batch = a_batch()
    given = batch.given
    inputs = inputs_by_name(given, dict(enumerate(batch.parts)))
    early = {name: one.clone() for name, one in inputs.items()}
    assert not list(judged(unordered(early, inputs)))
    early[f"read_index[{FULL}]"].zero_()  # As the engine left it before it wrote the batch.
    (finding,) = judged(unordered(early, inputs))
    assert f"read_index[{FULL}] (read without waiting" in finding.text


def test_a_block_that_is_added_to_the_prefix_cache_must_be_written() -> None:
    journal, cache = InMemory(Path()), a_cache()
    engine = FollowedCache(cache, "5", journal, Settings(""))
    mine, tokens = cache.cache_allocators[FULL], [*range(2 * PAGE)]
    mine.block_table["a"] = [6, 7]
    row = Row("a", tokens, 0, PAGE, {FULL: torch.arange(6 * PAGE, 7 * PAGE)})
    everything = {name: torch.arange(one.slots) for name, one in engine.watcher.ledgers.items()}

    def mark(allocator: Any, name: str, token_ids: list[int], count: int) -> None:
        mine.ledger.block_to_hash[6 + len(mine.ledger.block_to_hash)] = 1

    engine.watcher.begin(Forward("prefill", (row,), everything))
    mine._kv_token_views[0][0][engine.parts[FULL].rows * 6 :][:PAGE] = 1
    engine.watcher.end()
    for found in (0, 1):
        hooked(engine.share, mark, mine, "a", tokens, 1)
        assert [one.check for one in journal.found] == ["uninitialised read"] * found


@pytest.mark.parametrize(
    ("evictable", "held", "text"),
    [
        ([6], [7, 7], ""),
        ([6, 7], [7], f"{PAGE} slots count as evictable and are not in the prefix cache"),
        ([], [7], f"{PAGE} slots of the prefix cache can never be evicted"),
        ([7], [7], f"{PAGE} slots "),
    ],
)
def test_a_block_is_evictable_if_no_request_holds_it(
    evictable: list[int], held: list[int], text: str
) -> None:
    journal, cache = InMemory(Path()), a_cache()
    engine = FollowedCache(cache, "5", journal, Settings(""))
    mine = cache.cache_allocators[FULL]
    mine.block_table["a"], mine.ledger.block_to_hash = held, {6: 1, 7: 2}
    mine.ledger.cached_blocks = dict.fromkeys(evictable)
    engine.judge_cached()
    wrong = len({6, 7}.difference(held) ^ {*evictable})
    assert [one.check for one in journal.found] == ["leak"] * wrong
    assert all(text in one.text for one in journal.found)


def an_io(batch: TransformersBatch) -> SimpleNamespace:
    """Return the static tensors of the engine in which the arguments of a batch lie."""
    given = batch.given
    kinds = {name: part.allocator for name, part in batch.parts.items()}
    return SimpleNamespace(
        input_ids=given["input_ids"][0],
        position_ids=given["position_ids"][0],
        logits_indices=torch.zeros(8, dtype=torch.int64),
        cumulative_seqlens_q=given["cu_seq_lens_q"],
        cumulative_seqlens_k=given["cu_seq_lens_k"],
        carry_over_ids=torch.zeros(8),
        write_index_storage=given["write_index"],
        read_index_storage=given["read_index"],
        attention_mask=None,
        block_table=torch.empty(0),
        output_ids=torch.zeros(1, 8),
        config=SimpleNamespace(vocab_size=16),
        cache=SimpleNamespace(max_tokens_read=8, cache_allocators=kinds),
    )


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda given: given, None),
        (
            lambda given: {**given, "position_ids": given["position_ids"].clone()},
            "position_ids of the batch is not at the address",
        ),
        (
            lambda given: {**given, "input_ids": given["input_ids"][:, :4]},
            "input_ids of the batch has the shape [4], but was captured with [8]",
        ),
    ],
)
def test_a_graph_must_have_captured_the_arguments_of_the_batch(
    other: Callable[[dict[str, Any]], dict[str, Any]], what: str | None
) -> None:
    """Else it reads inputs that nothing here saves, and is not repeated."""
    batch, runs = a_batch(), list[bool]()
    io, journal, graph = an_io(batch), InMemory(Path()), parts.Part()
    runner = SimpleNamespace(
        inputs_and_outputs=SimpleNamespace(get_cb_kwargs=tuple),
        _forward_process_and_sample=lambda *_: None,
        do_sample=False,
    )
    engine = FollowedCache(a_cache(), "5", journal, Settings(""))
    engine.now = (runner, None, batch)
    hooked(engine.capture, lambda io, graph: None, io, graph)
    engine.now = (
        runner,
        None,
        TransformersBatch(batch.requests, other(dict(batch.given)), batch.parts),
    )
    engine.watcher.begin(Forward("prefill", (), batch.written()))
    hooked(functools.partial(engine.replay, io=io, graph=graph), lambda: runs.append(True))
    assert journal.unsure == []
    found = [one.text for one in journal.found if one.check == "moved address"]
    assert [what is not None and what in text for text in found] == [True] * (what is not None)
    assert (len(runs) == 1) == (what is not None)


def test_what_a_release_lacks_matters_once_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other engines import transformers, too, and only use its models."""
    journal, made = InMemory(Path()), list[Any]()

    def install(_: object, method_of: Any) -> list[str]:
        made.append(method_of.__self__)
        return ["reset"]

    monkeypatch.setattr(following, "active", lambda: Settings(""))
    monkeypatch.setattr(following, "of_process", lambda: journal)
    monkeypatch.setattr(hooking, "release_of", lambda _: "5.6.0")
    monkeypatch.setattr(hooking, "install", install)
    Hooks.connect({"reset": ("requests.reset",)})
    assert not journal.unsure
    assert hooked(made[0].made, lambda *_: 7, None, None, None) == 7
    assert journal.unsure == ["transformers 5.6.0: none of requests.reset is there to watch"]
