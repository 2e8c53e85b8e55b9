"""Lists the methods of the engine that are wrapped. Each cache is followed by its own `Engine`."""

import importlib
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from paritybit.connectors.failures import judge
from paritybit.connectors.following import Original
from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.hooking import install as install_hooks
from paritybit.connectors.transformers.engine import Engine
from paritybit.connectors.transformers.sources import meaning
from paritybit.watch.journal import of_process
from paritybit.watch.settings import active

PATHS = {
    "made": "cache.PagedAttentionCache.__init__",
    "failed": "continuous_api.ContinuousBatchingManager._handle_critical_error",
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
}
TARGETS: dict[str, tuple[str, ...]] = {
    name: (f"transformers.generation.continuous_batching.{path}",) for name, path in PATHS.items()
}
TARGETS["share"] = tuple(
    f"transformers.generation.continuous_batching.cache_allocators.cache_allocator.CacheAllocator.{name}"
    for name in ("fork_blocks", "acquire_prefix_blocks", "mark_complete_blocks")
)
"""Maps each method of `Hooks` or `Engine` to the method that it wraps. All are required."""


class Hooks:
    """Passes each call to the `Engine` that follows the cache of the call."""

    def __init__(self) -> None:
        self.engines: WeakKeyDictionary[Any, Engine] = WeakKeyDictionary()
        """The engines, by cache and by its pool of blocks."""
        self.lacking: list[str] = []

    def made(self, original: Original, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Start to watch a cache."""
        result = original(cache, *args, **kwargs)
        settings, journal = active(), of_process()
        if settings is None or journal is None:
            return result
        try:
            if self.lacking:
                raise NotRecognisedError(f"the lack of {', '.join(self.lacking)}")
            engine = Engine(cache, release(), journal, settings)
        except NotRecognisedError as error:
            journal.undecided(f"transformers {release()}: {error} is not recognised")
            return result
        owners = (part.allocator for part in engine.parts.values())
        self.engines |= dict.fromkeys((cache, cache.pool, *owners), engine)
        journal.scope(**settings_of(cache, *args, **kwargs))
        return result

    def failed(
        self, original: Original, manager: Any, error: Any, processor: Any, *args: Any, **kw: Any
    ) -> Any:
        """Judge an error that ends the generation loop."""
        settings, journal = active(), of_process()
        if settings is not None and journal is not None:
            judge(error, journal, settings, meaning(error))
        return original(manager, error, processor, *args, **kw)

    def method_of(self, name: str) -> Callable[..., Any]:
        """Return a hook that calls the method `name` of the `Engine` that follows a cache."""
        if hasattr(self, name):
            own: Callable[..., Any] = getattr(self, name)
            return own
        method = getattr(Engine, name)

        def hook(original: Original, owner: Any, *args: Any, **kwargs: Any) -> Any:
            engine = self.engines.get(getattr(owner, "cache", owner))
            if engine is None:
                return original(owner, *args, **kwargs)
            return method(engine, original, owner, *args, **kwargs)

        return hook


def settings_of(cache: Any, config: Any, batching: Any = None, *args: Any, **kw: Any) -> Any:
    """Return the settings of a cache, with the names that sglang uses for them."""
    batching = kw.get("continuous_batching_config", batching)
    return {
        "page_size": batching.page_size,
        "disable_overlap_schedule": not batching.use_async_batching,
        "disable_radix_cache": not cache.use_prefix_sharing,
        "attention_backend": config._attn_implementation,
        "device": str(cache.device),
    }


def release() -> str:
    """Return the version of the loaded engine."""
    return str(getattr(importlib.import_module("transformers"), "__version__", "unknown"))


def install() -> None:
    """Wrap the methods of the engine. If one is missing, no cache is watched."""
    if active() is not None:
        hooks = Hooks()
        lacking = install_hooks(TARGETS, hooks.method_of)
        hooks.lacking = [name for name in lacking if name != "share"]
