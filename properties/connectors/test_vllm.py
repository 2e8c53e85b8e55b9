"""The connector of vLLM over stand-ins of the parts that it looks at."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.connectors.hooking import NotRecognisedError, guarded
from paritybit.connectors.vllm.engine import WARM_UP
from paritybit.connectors.vllm.pools import GROUP, by_slot, described
from paritybit.connectors.vllm.requests import Requests
from paritybit.watch.journal import read
from properties.connectors.parts_vllm import (
    BLOCKS,
    DECODE,
    FIRST,
    GROUPS,
    PAGE,
    PROMPT,
    TABLE,
    WINDOW,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    Part,
    Served,
    a_pool,
    a_request,
    output,
)

# Pools.


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


@pytest.mark.parametrize("heads_first", [False, True])
def test_a_block_that_holds_k_before_v_is_cut_in_two(heads_first: bool) -> None:
    cache = torch.zeros(8, 2, 4, 3, 6)
    if heads_first:
        cache = torch.zeros(8, 2, 3, 4, 6).transpose(2, 3)
    (keys, values), block = by_slot(cache, 8, 4)
    assert block == 4
    assert keys.shape == values.shape == (8, 4, 3, 6)
    keys[5, 3], values[6, 2] = 1, 2
    assert bool((cache[5, 0, 3] == 1).all() and (cache[6, 1, 2] == 2).all())
    assert int(cache.sum()) == 3 * 18
    halves, block = by_slot(torch.zeros(16, 2, 4, 3, 6), 8, 8)  # As kernels may ask for.
    assert block == 4
    assert halves[0].shape[0] == 16


@pytest.mark.parametrize(
    ("name", "stored", "seen"),
    [
        ("fp8", torch.uint8, torch.float8_e4m3fn),
        ("fp8_e4m3", torch.uint8, torch.float8_e4m3fn),
        ("fp8_e5m2", torch.uint8, torch.float8_e5m2),
        ("fp8_per_token_head", torch.uint8, torch.float8_e4m3fn),
        ("int8_per_token_head", torch.int8, torch.int8),
        ("int4_per_token_head", torch.uint8, torch.uint8),
        ("auto", torch.bfloat16, torch.bfloat16),
    ],
)
def test_kv_that_is_stored_as_bytes_is_seen_as_the_numbers_that_it_holds(
    name: str, stored: torch.dtype, seen: torch.dtype
) -> None:
    config, layers, _ = a_pool()
    cache = torch.zeros(BLOCKS, PAGE, 2, dtype=stored)
    for layer in layers.values():
        vars(layer).update(kv_cache=cache, kv_cache_dtype=name)
    (group,) = described(config, layers).groups
    (tensor,) = group.layers[0].tensors
    assert (tensor.dtype, tuple(tensor.shape)) == (seen, (BLOCKS * PAGE, 2))
    tensor[2 * PAGE + 1, 1] = 1
    assert cache[2, 1, 1].view(seen).item() == 1
    assert cache.count_nonzero() == 1


def test_caches_that_are_cut_differently_are_refused() -> None:
    config, layers, _ = a_pool()
    layers["slid"] = Part(kv_cache=torch.zeros(BLOCKS, 2, PAGE, 3, 2))
    with pytest.raises(NotRecognisedError, match="differently"):
        described(config, layers)


def test_a_layout_without_slots_is_refused() -> None:
    with pytest.raises(NotRecognisedError, match="shape"):
        by_slot(torch.zeros(8, 2, 4, 6), 8, 4)  # Each block has heads first.


def test_groups_that_are_not_known_are_refused() -> None:
    config, layers, _ = a_pool()
    spec = ChunkedLocalAttentionSpec(block_size=PAGE)
    config.kv_cache_groups = [Part(layer_names=["full"], kv_cache_spec=spec)]
    with pytest.raises(NotRecognisedError, match="ChunkedLocalAttentionSpec"):
        described(config, layers)
    larger = FullAttentionSpec(block_size=2 * PAGE)
    config.kv_cache_groups = [*GROUPS, Part(layer_names=["full"], kv_cache_spec=larger)]
    with pytest.raises(NotRecognisedError, match="tokens"):
        described(config, layers)


# Requests.


def test_a_request_has_a_row_for_each_group() -> None:
    config, layers, _ = a_pool()
    requests, pool = Requests(), described(config, layers)
    requests.follow(output({}, new={"a": ([1, 2], [3, 4])}))
    requests.follow(output({}, cached={"a": (6, ([5], [6]))}))
    said = output({"a": 3})
    forward = requests.forward(said, ["a"], {"a": a_request(*range(10, 18))}, pool)
    full, slid = forward.rows
    assert (full.window, slid.window) == (None, WINDOW)
    assert full.space != slid.space
    assert (full.cached, full.computed) == (6, 3)
    assert full.tokens == [*range(10, 18), None]
    assert full.slots[GROUP].tolist() == [*range(4, 12), 20]
    assert slid.slots[GROUP].tolist() == [*range(12, 20), 24]


def test_a_request_that_was_preempted_has_new_blocks() -> None:
    requests = Requests()
    requests.follow(output({}, new={"a": ([1], [2]), "b": ([3], [4])}))
    requests.follow(output({}, cached={"a": (0, ([5], [6]))}, resumed=("a",), finished=("b",)))
    assert requests.known["a"].blocks == [[5], [6]]
    assert list(requests.known) == ["a"]


# A whole engine of stand-ins.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An engine that has computed a prompt of six tokens for request a."""
    served = Served(tmp_path)
    served.scheduler.requests["a"] = a_request(*range(10, 20))
    said = output({"a": 6}, new={"a": ([1, 2], [3, 4])})
    served.run(said, [[1, 2], [3, 4]], 0, list(range(10, 16)))
    yield served
    served.journal.end()


def test_a_right_engine_has_no_finding(served: Served) -> None:
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == set()
    assert served.journal.counts["reads"] == 6 + 3
    assert served.journal.counts["lists"] == 2


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


def test_a_block_that_is_freed_in_use_is_found(served: Served) -> None:
    queue = served.scheduler.kv_cache_manager.block_pool.free_block_queue
    served.engine.frees(lambda *_: None, queue, [served.blocks[1]])
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    assert served.found() == {"freed in use"}


def test_a_block_that_is_freed_twice_is_found(served: Served) -> None:
    queue = served.scheduler.kv_cache_manager.block_pool.free_block_queue
    for _ in range(2):
        served.engine.frees(lambda *_: None, queue, [served.blocks[1]])
    assert served.found() == {"double free"}
    served.engine.takes(lambda *_: [served.blocks[1]], queue, 1)
    served.engine.frees(lambda *_: None, queue, served.blocks[1])
    served.journal.findings.clear()


def test_a_block_that_nobody_has_is_a_leak(served: Served) -> None:
    served.scheduler.requests.clear()
    served.engine.idle(lambda *_: None, served.scheduler)
    assert served.found() == set()
    served.free.remove(served.blocks[2])
    served.engine.forwards += 1
    served.engine.idle(lambda *_: None, served.scheduler)
    assert served.found() == {"leak"}


def test_groups_that_take_one_block_are_found(served: Served) -> None:
    """The other group's layers write it with the same tokens."""
    said = output({}, cached={"a": (0, ([1, 2], [1, 2]))}, resumed=("a",))
    served.engine.requests.follow(said)
    served.run(DECODE, [[1, 2], [1, 2]], 6, [16])
    assert "wrong owner" in served.found()


@pytest.mark.parametrize(("mode", "kind"), [("FULL", "Part"), ("PIECEWISE", "pieces")])
def test_a_replay_is_judged_or_counted(served: Served, mode: str, kind: str) -> None:
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.replay(Part(runtime_mode=Part(name=mode), hidden_states=torch.zeros(1, 2)))
    assert served.found() == set()
    assert served.journal.counts[f"replays: {kind}"] == 1
    assert served.journal.counts.get("tried: unrepeatable replay", 0) == (mode == "FULL")
    assert (served.engine.states is not None) == (mode == "FULL")


def test_a_forward_that_is_not_checked_tells_what_it_writes(served: Served) -> None:
    watcher = served.engine.watcher
    assert watcher is not None
    watcher.wait = 1  # The next forward is left out.
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    served.run(output({"a": 1}, cached={"a": (7, None)}), [[1, 2], [3, 4]], 7, [17])
    assert served.found() == set()
    assert served.journal.counts["skipped_forwards"] == 1
    assert served.journal.counts["forwards"] == 2


def test_a_warm_up_is_not_watched_and_a_scheduler_elsewhere_is_said(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.engine.scheduler = None
    for _ in range(WARM_UP):
        served.run(output({"a": 1}, new={"a": ([1], [2])}), [[1], [2]], 0, [10])
    assert not served.journal.path.exists()
    served.run(output({"a": 1}, new={"a": ([1], [2])}), [[1], [2]], 0, [10])
    assert [line["kind"] for line in read(served.journal.path)] == ["undecided"]
    served.journal.end()


@pytest.mark.parametrize(("role", "watched"), [("kv_both", False), ("kv_producer", True)])
def test_kv_that_a_connector_loads_is_not_watched(tmp_path: Path, role: str, watched: bool) -> None:
    """The slots that it fills are computed by no forward."""
    served = Served(tmp_path)
    served.runner.vllm_config.kv_transfer_config = Part(kv_role=role)
    served.scheduler.requests["a"] = a_request(*PROMPT)
    served.run(FIRST, TABLE, 0, PROMPT)
    said = [one["what"] for one in read(served.journal.path) if one["kind"] == "undecided"]
    assert said == ([] if watched else ["a KV connector that loads KV is not watched"])
    assert (served.engine.watcher is not None) == watched
    served.journal.end()


@pytest.mark.parametrize("name", ["seq_lens", "query_start_loc"])
def test_each_group_s_lengths_are_compared(served: Served, name: str) -> None:
    """A second group may have a tensor of its own, which keeps what it held."""
    build = served.engine.metadata

    def other(original: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(served.metadata["slid"], name, getattr(served.metadata["slid"], name) - 1)
        return build(original, *args, **kwargs)

    served.engine.metadata = other  # type: ignore[method-assign]
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    lines = [line for line in read(served.journal.path) if line["kind"] == "finding"]
    assert f"{name} 1" in {line["cause"]["input"] for line in lines if line["cause"]}


@pytest.mark.parametrize(
    ("bounds", "wrong"),
    [
        ({"max_seq_len": 7, "max_query_len": 1}, None),
        ({"max_seq_len": 64, "max_query_len": 4}, None),
        ({"max_seq_len": 6, "max_query_len": 1}, "max_seq_len 1"),
        ({"max_seq_len": 7, "max_query_len": 0}, "max_query_len 1"),
        ({"max_seq_len": None, "max_query_len": torch.tensor(0)}, None),
    ],
)
def test_the_largest_lengths_on_the_host_may_be_too_large_alone(
    served: Served, bounds: dict[str, Any], wrong: str | None
) -> None:
    build = served.engine.metadata

    def other(original: Any, *args: Any, **kwargs: Any) -> Any:
        vars(served.metadata["slid"]).update(bounds)
        return build(original, *args, **kwargs)

    served.engine.metadata = other  # type: ignore[method-assign]
    served.run(DECODE, [[1, 2], [3, 4]], 6, [16])
    lines = [line for line in read(served.journal.path) if line["kind"] == "finding"]
    assert [line["cause"]["input"] for line in lines] == ([] if wrong is None else [wrong])


def test_a_request_that_nobody_announced_ends_the_watch(served: Served) -> None:
    said = output({"b": 1}, cached={"b": (3, None)})
    guarded(served.engine.execute)(lambda *_: None, served.runner, said)
    assert served.engine.watcher is None
    undecided = [line for line in read(served.journal.path) if line["kind"] == "undecided"]
    assert len(undecided) == 1


def test_nothing_is_watched_after_sampling_failed(served: Served) -> None:
    """An asynchronous engine runs on, with a state of before."""

    def failing(runner: Part) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        served.engine.sampled(failing, served.runner)
    served.run(DECODE, [[3, 4], [1, 2]], 6, [16])
    served.journal.settle()
    lines = list(read(served.journal.path))
    assert [one["what"] for one in lines if one["kind"] == "undecided"] == [
        "sampling failed, so later forwards are not watched"
    ]
    assert not any(one["kind"] == "finding" for one in lines)
