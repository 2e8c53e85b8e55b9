"""The connectors keep nothing of an engine alive, and wait for nothing in skipped forwards."""

import gc
import weakref
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.transformers.engine import FollowedCache
from paritybit.testing.replays import InMemory
from paritybit.watch.settings import Settings
from properties.connectors import parts, parts_vllm
from properties.connectors.parts import hooked
from properties.connectors.test_engine import PROMPT, Toy
from properties.connectors.test_transformers import FULL, SLIDING, a_batch, a_cache
from properties.support.watching import skip


def references(objects: Iterable[Any]) -> list["weakref.ref[Any]"]:
    """Return weak references to objects."""
    return [weakref.ref(one) for one in objects]


def alive(held: list["weakref.ref[Any]"]) -> list[Any]:
    """Return the objects that are still alive."""
    gc.collect()
    return [one for reference in held if (one := reference()) is not None]


def test_an_engine_of_sglang_dies_and_the_next_one_is_watched(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    engine, journal = toy.engine, toy.journal
    toy.request = parts.Part(**vars(toy.request))

    class Graph:
        """A graph."""

        def replay(self) -> None:
            """Replay the graph."""

    for free in range(2):
        toy.prefill()
        toy.decode()
        graph = Graph()
        runner = SimpleNamespace(graphs={2: graph}, buffers=parts.Buffers())
        engine.captured(runner)
        tensors = [*toy.pool.full_kv_pool.k_buffer, *toy.pool.swa_kv_pool.v_buffer, toy.table]
        allocators = vars(toy.allocator).values()
        held = references([toy.pool, toy.runner, toy.request, graph, *tensors, *allocators])
        watcher = engine.watcher
        assert watcher is not None
        for _ in range(2 * free):  # Only noted until the watcher ends.
            watcher.freed("full", torch.tensor([40]))
        ended = weakref.ref(watcher)
        del toy, graph, runner, tensors, allocators, watcher
        assert alive(held) == []
        assert ended() is None
        toy = Toy(tmp_path)
        toy.engine, toy.journal, toy.request = engine, journal, parts.Part(**vars(toy.request))
        engine.hook_lists = lambda runner: None  # type: ignore[method-assign]
        hooked(engine.model_runner, lambda runner: None, toy.runner)
    assert [key.split(" | ")[0] for key in journal.findings] == ["double free"]
    assert journal.counts["forwards"] == 4
    journal.end()


def test_an_engine_of_vllm_dies_and_the_next_one_is_watched(tmp_path: Path) -> None:
    served = parts_vllm.Served(tmp_path)
    engine, journal = served.engine, served.journal
    for _ in range(2):
        served.scheduler.requests["a"] = parts_vllm.a_request(*parts_vllm.PROMPT)
        served.run(parts_vllm.FIRST, parts_vllm.TABLE, 0, parts_vllm.PROMPT)
        assert engine.watcher is not None
        watcher = weakref.ref(engine.watcher)
        held = references([served.runner, served.scheduler, served.cache, *served.blocks])
        held += references(served.scheduler.requests.values())
        del served
        assert alive(held) == []
        assert watcher() is None
        served = parts_vllm.Served(tmp_path)
        served.engine = served.core = engine
        served.journal = journal
        context = served.runner.vllm_config.compilation_config.static_forward_context
        config, layers, served.cache = parts_vllm.a_pool()
        context.update(layers)
        hooked(engine.pools, lambda *_: None, served.runner, config)
        del config, layers, context
    assert served.found() == set()
    assert journal.counts["forwards"] == 2
    journal.end()


def test_a_cache_of_transformers_dies_without_the_collector() -> None:
    cache = a_cache()
    parts.KEPT[:] = [one for one in parts.KEPT if one is not cache]
    journal = InMemory(Path())
    engine = FollowedCache(cache, "5", journal, Settings(""))
    allocators = [*cache.cache_allocators.values()]
    views = [one for allocator in allocators for one in allocator._kv_token_views[0]]
    held = references([cache, *allocators, *views])
    gc.disable()
    try:
        del cache, allocators, views
        assert [one() for one in held] == [None] * len(held)
    finally:
        gc.enable()
    assert engine.watcher is not None


STREAMS = SimpleNamespace(inputs_and_outputs=SimpleNamespace(compute_stream="compute"))


@pytest.mark.parametrize("table", [False, True])
def test_a_skipped_forward_of_transformers_waits_for_no_device(
    table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for the stream that writes. Tensors of the device `meta` have no values to wait for."""
    writer = object()  # It has no `synchronize`.
    streams = SimpleNamespace(current_stream=lambda: writer, stream=nullcontext)
    monkeypatch.setattr(torch, "get_device_module", lambda: streams)
    batch = a_batch(position_ids=torch.zeros(1, 8, dtype=torch.int32))
    given = {**batch.given, "block_table": torch.zeros(2, 8, 4) if table else None}
    given = {
        name: [one.to("meta") for one in value] if isinstance(value, list) else value
        for name, value in given.items()
    }
    given |= {n: one.to("meta") for n, one in given.items() if isinstance(one, torch.Tensor)}
    engine = FollowedCache(parts.kept(a_cache()), "5", InMemory(Path()), Settings("", every=1000))
    engine.planned = list(batch.requests)
    skip(engine.watcher, 10)
    assert hooked(engine.compute, lambda *_: "result", STREAMS, None, given) == "result"
    noted = {name: changes.noted for name, changes in engine.watcher.changes.items()}
    assert [len(noted[name]) for name in (FULL, SLIDING)] == [1, 1]
    assert not engine.planned


def test_a_skipped_forward_of_sglang_waits_for_no_device(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    toy.prefill()
    watcher = toy.engine.watcher
    assert watcher is not None
    skip(watcher, 10)
    toy.engine.rewrites = True
    toy.pool.full_to_swa_index_mapping = toy.pool.full_to_swa_index_mapping.to("meta")
    batch = parts.decode([1], [len(PROMPT) + 1], [11], [26])
    for name, value in vars(batch).items():
        if isinstance(value, torch.Tensor):
            setattr(batch, name, value.to("meta"))
    toy.model = lambda batch: "logits"
    assert toy.run(batch) == "logits"
    assert {name: len(one.noted) for name, one in watcher.changes.items()} == {"full": 1, "swa": 1}
    for changes in watcher.changes.values():
        changes.noted.clear()
    toy.journal.end()
