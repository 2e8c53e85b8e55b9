"""The connector of vLLM over stand-ins of the parts that it looks at."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.hooking import guarded
from paritybit.connectors.vllm import hooks
from paritybit.connectors.vllm.engine import WARM_UP, Engine
from paritybit.connectors.vllm.pools import GROUP, NotRecognisedError, by_slot, described
from paritybit.connectors.vllm.requests import Requests
from paritybit.watch.journal import Journal, read
from paritybit.watch.settings import Settings

PAGE, BLOCKS, WINDOW = 4, 16, 4


class Part(SimpleNamespace):
    """A part of the engine with any attributes."""


class FullAttentionSpec(Part):
    """A group without a window."""


class SlidingWindowSpec(Part):
    """A group with a window."""


class ChunkedLocalAttentionSpec(Part):
    """A group that the connector does not know."""


GROUPS = (
    Part(layer_names=["full"], kv_cache_spec=FullAttentionSpec(block_size=PAGE)),
    Part(
        layer_names=["slid"],
        kv_cache_spec=SlidingWindowSpec(block_size=PAGE, sliding_window=WINDOW),
    ),
)


def a_pool() -> tuple[Part, dict[str, Part], torch.Tensor]:
    """Return a configuration, layers, and the cache that both groups share, [blocks, page, 2]."""
    cache = torch.zeros(BLOCKS, PAGE, 2)
    layers = {name: Part(kv_cache=cache) for name in ("full", "slid")}
    return Part(kv_cache_groups=GROUPS, num_blocks=BLOCKS), layers, cache


def output(
    counts: Mapping[str, int],
    new: Mapping[str, tuple[list[int], list[int]]] | None = None,
    cached: Mapping[str, tuple[int, tuple[list[int], ...] | None]] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
) -> Part:
    """Return what a scheduler says before a forward."""
    return Part(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            Part(req_id=name, block_ids=blocks, num_computed_tokens=0)
            for name, blocks in (new or {}).items()
        ],
        scheduled_cached_reqs=Part(
            req_ids=list(cached or {}),
            num_computed_tokens=[computed for computed, _ in (cached or {}).values()],
            new_block_ids=[blocks for _, blocks in (cached or {}).values()],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
    )


def a_request(*tokens: int) -> Part:
    """Return a request of the scheduler."""
    return Part(all_token_ids=list(tokens), lora_request=None, cache_salt=None)


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


def test_caches_that_are_cut_differently_are_refused() -> None:
    config, layers, _ = a_pool()
    layers["slid"] = Part(kv_cache=torch.zeros(BLOCKS, 2, PAGE, 3, 2))
    with pytest.raises(NotRecognisedError, match="differently"):
        described(config, layers)


def test_a_layout_without_slots_is_refused() -> None:
    with pytest.raises(NotRecognisedError, match="shape"):
        by_slot(torch.zeros(8, 2, 4, 6), 8, 4)  # Each block has heads first.


def test_groups_that_share_tensors_are_one() -> None:
    config, layers, _ = a_pool()
    pool = described(config, layers)
    assert pool.windows == (None, WINDOW)
    assert [layer.name for layer in pool.group.layers] == ["full, slid"]
    assert pool.slots([2, 0]).tolist() == [8, 9, 10, 11, -1, -1, -1, -1]


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


class Served:
    """An engine with one request at a time, on which the connector's hooks are called."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "process.jsonl")
        self.engine = Engine("0", self.journal, Settings(str(folder), None, 1))
        config, layers, self.cache = a_pool()
        compilation = Part(static_forward_context=layers)
        model = Part(max_model_len=64, get_vocab_size=lambda: 100)
        self.runner = Part(
            vllm_config=Part(
                compilation_config=compilation,
                parallel_config=Part(),
                speculative_config=None,
                model_config=model,
            ),
            input_batch=Part(req_ids=[]),
            input_ids=torch.zeros(8, dtype=torch.int64),
            positions=torch.zeros(8, dtype=torch.int64),
        )
        self.blocks = [Part(block_id=n, ref_cnt=0, is_null=n == 0) for n in range(BLOCKS)]
        self.free = self.blocks[1:]
        queue = Part(get_all_free_blocks=lambda: self.free)
        pool = Part(free_block_queue=queue, blocks=self.blocks)
        self.scheduler = Part(requests={}, kv_cache_manager=Part(block_pool=pool))
        self.engine.pools(lambda *_: None, self.runner, config)
        self.engine.schedule(lambda *_: None, self.scheduler)

    def run(self, said: Part, table: list[list[int]], cached: int, tokens: list[int]) -> None:
        """Run one forward of request a with block tables, as a worker has them."""
        places = range(cached, cached + len(tokens))
        slots = [[blocks[p // PAGE] * PAGE + p % PAGE for p in places] for blocks in table]
        self.runner.input_batch.req_ids = ["a"]
        self.runner.input_ids[: len(tokens)] = torch.tensor(tokens)
        self.runner.positions[: len(tokens)] = torch.tensor(list(places))
        metadata = {
            layer: Part(
                block_table=torch.tensor([blocks]),
                seq_lens=torch.tensor([cached + len(tokens)]),
                query_start_loc=torch.tensor([0, len(tokens)]),
                slot_mapping=torch.tensor(mine),
                num_actual_tokens=len(tokens),
            )
            for layer, blocks, mine in zip(("full", "slid"), table, slots, strict=True)
        }

        self.metadata = metadata

        def computed(runner: Any, said: Any) -> None:
            self.engine.metadata(lambda owner: (metadata, None), self.runner)
            for mine in slots:
                self.cache.flatten(0, 1)[mine] = torch.rand(len(mine), 2)

        guarded(self.engine.execute)(computed, self.runner, said)

    def replay(self, wrapper: Any) -> None:
        """Run a decode whose model is a graph, or has one, that a wrapper replays."""

        def computed(runner: Any, said: Any) -> None:
            self.engine.metadata(lambda owner: (self.metadata, None), runner)
            slots = [one.slot_mapping for one in self.metadata.values()]

            def replayed(graph: Any) -> None:
                for number, mine in enumerate(slots):
                    self.cache.flatten(0, 1)[mine] = float(7 + number)

            def called(wrapper: Any) -> None:
                self.engine.replay(replayed, "graph")

            self.engine.wrapper(called, wrapper)

        guarded(self.engine.execute)(computed, self.runner, DECODE)

    def found(self) -> set[str]:
        """Return the names of the checks that found something, and what is undecided."""
        self.journal.write_counts()
        lines = list(read(self.journal.path))
        assert [line["what"] for line in lines if line["kind"] == "undecided"] == []
        return {line["check"] for line in lines if line["kind"] == "finding"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An engine that has computed a prompt of six tokens for request a."""
    served = Served(tmp_path)
    served.scheduler.requests["a"] = a_request(*range(10, 20))
    said = output({"a": 6}, new={"a": ([1, 2], [3, 4])})
    served.run(said, [[1, 2], [3, 4]], 0, list(range(10, 16)))
    yield served
    served.journal.end()


DECODE = output({"a": 1}, cached={"a": (6, None)})


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


def test_a_request_that_nobody_announced_ends_the_watch(served: Served) -> None:
    said = output({"b": 1}, cached={"b": (3, None)})
    guarded(served.engine.execute)(lambda *_: None, served.runner, said)
    assert served.engine.watcher is None
    undecided = [line for line in read(served.journal.path) if line["kind"] == "undecided"]
    assert len(undecided) == 1


def test_speculation_is_not_watched(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.runner.vllm_config.speculative_config = Part()
    served.scheduler.requests["a"] = a_request(10)
    served.run(output({"a": 1}, new={"a": ([1], [2])}), [[1], [2]], 0, [10])
    assert served.engine.watcher is None
    undecided = [line["what"] for line in read(served.journal.path)]
    assert undecided == ["speculation is not watched"]
    served.journal.end()


def test_each_hook_is_a_method() -> None:
    assert all(hasattr(Engine, name) for name in hooks.TARGETS)
    assert set(hooks.REQUIRED) <= set(hooks.TARGETS)
