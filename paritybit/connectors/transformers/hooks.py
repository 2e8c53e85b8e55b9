"""Which methods of the engine are wrapped, and how.

Nothing is wrapped but methods of its own classes. Each cache gets an engine of its own here.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from paritybit.connectors.hooking import guarded
from paritybit.connectors.transformers.cache import NotRecognisedError
from paritybit.connectors.transformers.engine import Engine
from paritybit.connectors.transformers.sources import called_at, meaning, raised_at
from paritybit.connectors.transformers.streams import on_stream
from paritybit.watch.journal import of_process
from paritybit.watch.settings import active

PACKAGE = "transformers.generation.continuous_batching"

Original = Callable[..., Any]

TARGETS = {
    "made": "cache.PagedAttentionCache.__init__",
    "prepare": "input_outputs.ContinuousBatchingIOs.prepare_batch_tensors",
    "compute": "model_runner.ModelRunner.compute_batch",
    "warm": "model_runner.ModelRunner.run_one_warmup",
    "graph": "input_outputs.ContinuousBatchingIOs.get_graph",
    "capture": "input_outputs.ContinuousBatchingIOs.set_graph",
    "allocate": "cache_allocators.cache_pool.CachePool.get_free_blocks",
    "free": "cache_allocators.cache_pool.CachePool.free_blocks",
    "copy": "cache.PagedAttentionCache.perform_cache_copy",
    "store": "offloading_manager.OffloadingManager._offload_to_cpu",
    "load": "offloading_manager.OffloadingManager.restore_scheduled_requests",
    "idle": "continuous_api.ContinuousBatchProcessor.prepare_next_batch",
    "failed": "continuous_api.ContinuousBatchingManager._handle_critical_error",
}
"""Per method of `Hooks`, the method that it wraps. All are needed."""


class Graph:
    """A graph of the engine, whose replay is judged."""

    def __init__(self, engine: Engine, io: Any, graph: Any) -> None:
        self.engine, self.io, self.graph = engine, io, graph

    def replay(self) -> Any:
        """Replay the graph."""
        return self.engine.replay(self.io, self.graph)


class Hooks:
    """Finds what follows a call's cache. Each method gets the original, then its arguments."""

    def __init__(self) -> None:
        self.engines: WeakKeyDictionary[Any, Engine] = WeakKeyDictionary()
        self.pools: WeakKeyDictionary[Any, Engine] = WeakKeyDictionary()
        self.lacking: list[str] = []

    def made(self, original: Original, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Start to watch a cache."""
        result = original(cache, *args, **kwargs)
        settings, journal = active(), of_process()
        if settings is None or journal is None:
            return result
        try:
            if self.lacking:
                raise NotRecognisedError(", ".join(self.lacking))
            engine = Engine(cache, release(), journal, settings)
        except NotRecognisedError as error:
            journal.undecided(f"transformers {release()}: {error} is not recognised")
            return result
        self.engines[cache] = self.pools[cache.pool] = engine
        journal.scope(**settings_of(cache, *args, **kwargs))
        return result

    def prepare(
        self, original: Original, io: Any, requests_in_batch: Any, *args: Any, **kw: Any
    ) -> Any:
        """Note the requests of a batch."""
        if io.cache in self.engines:
            self.engines[io.cache].prepare(requests_in_batch)
        return original(io, requests_in_batch, *args, **kw)

    def compute(
        self, original: Original, runner: Any, model: Any, batch_data: Any, *args: Any, **kw: Any
    ) -> Any:
        """Watch a forward pass."""
        run = functools.partial(original, runner, model, batch_data, *args, **kw)
        engine = self.engines.get(runner.cache)
        if engine is None:
            return run()
        with on_stream(runner) as writer:
            return engine.forward(runner, model, batch_data, run, writer)

    def warm(self, original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Note that the forward passes within are of made-up requests."""
        engine = self.engines.get(runner.cache)
        if engine is None:
            return original(runner, *args, **kwargs)
        engine.warming = True
        try:
            return original(runner, *args, **kwargs)
        finally:
            engine.warming = False

    def graph(self, original: Original, io: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a graph whose replay is judged."""
        graph, engine = original(io, *args, **kwargs), self.engines.get(io.cache)
        return graph if graph is None or engine is None else Graph(engine, io, graph)

    def capture(self, original: Original, io: Any, graph: Any, *args: Any, **kw: Any) -> Any:
        """Note a capture."""
        result = original(io, graph, *args, **kw)
        if io.cache in self.engines:
            self.engines[io.cache].captured(io, graph)
        return result

    def allocate(self, original: Original, pool: Any, index: int, *args: Any, **kwargs: Any) -> Any:
        """Note blocks that are handed out."""
        blocks = original(pool, index, *args, **kwargs)
        if pool in self.pools and blocks:
            self.pools[pool].allocated(index, blocks)
        return blocks

    def free(
        self, original: Original, pool: Any, index: int, block_ids: Any, *args: Any, **kw: Any
    ) -> Any:
        """Note blocks that are free again."""
        if pool in self.pools and block_ids:
            self.pools[pool].freed(index, block_ids, called_at())
        return original(pool, index, block_ids, *args, **kw)

    def copy(self, original: Original, cache: Any, copies: Any, *args: Any, **kw: Any) -> Any:
        """Note blocks that were copied."""
        result = original(cache, copies, *args, **kw)
        if cache in self.engines:
            self.engines[cache].copied(copies)
        return result

    def store(
        self, original: Original, manager: Any, victims: Any, tables: Any, *args: Any, **kw: Any
    ) -> Any:
        """Note blocks that were copied to the host."""
        requests = original(manager, victims, tables, *args, **kw)
        engine = self.engines.get(manager.cache)
        if engine is not None:
            for request in requests:
                engine.stored(request, tables[request])
        return requests

    def load(self, original: Original, manager: Any, requests: Any, *args: Any, **kw: Any) -> Any:
        """Note blocks that were copied from the host."""
        names = [one.state.request_id for one in requests if one.state.is_cpu_offloaded]
        tables = {name: manager._request_id_to_cpu_blocks[name] for name in names}
        result = original(manager, requests, *args, **kw)
        engine = self.engines.get(manager.cache)
        if engine is not None:
            for name, blocks in tables.items():
                engine.loaded(name, blocks)
        return result

    def idle(self, original: Original, processor: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge the blocks while nothing runs."""
        result = original(processor, *args, **kwargs)
        engine = self.engines.get(processor.cache)
        if engine is not None and not result and not processor.has_pending_requests():
            engine.idle(processor.cache.pool)
        return result

    def failed(
        self, original: Original, manager: Any, error: Any, processor: Any, *args: Any, **kw: Any
    ) -> Any:
        """Judge an error that ends the generation loop."""
        engine = None if processor is None else self.engines.get(processor.cache)
        if engine is not None and (what := meaning(error)) is not None:
            engine.watcher.raised(error, what, raised_at(error))
        return original(manager, error, processor, *args, **kw)


def settings_of(cache: Any, config: Any, batching: Any = None, *args: Any, **kw: Any) -> Any:
    """Return the settings of a cache by the names that other engines have for them."""
    batching = kw.get("continuous_batching_config", batching)
    return {
        "page_size": batching.page_size,
        "disable_overlap_schedule": not batching.use_async_batching,
        "disable_radix_cache": not cache.use_prefix_sharing,
        "attention_backend": config._attn_implementation,
        "device": str(cache.device),
    }


def release() -> str:
    """Return the version of the engine that is loaded here."""
    return str(getattr(importlib.import_module("transformers"), "__version__", "unknown"))


def install() -> None:
    """Wrap the methods of the engine. Where one is missing, nothing of it can be watched."""
    if active() is None:
        return
    hooks = Hooks()
    for name, path in TARGETS.items():
        owner, _, method = path.rpartition(".")
        module, _, cls = owner.rpartition(".")
        try:
            there = getattr(importlib.import_module(f"{PACKAGE}.{module}"), cls)
            wrapped = wrapping(guarded(getattr(hooks, name)), getattr(there, method))
        except (ImportError, AttributeError):
            hooks.lacking.append(f"the lack of {path}")
            continue
        setattr(there, method, wrapped)


def wrapping(hook: Callable[..., Any], original: Original) -> Original:
    """Return a method that calls a hook with the original."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return called
