"""What each method of `Hooks` or `FollowedCache` wraps. Each cache has its own `FollowedCache`."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from paritybit.connectors.failures import judge
from paritybit.connectors.following import Following
from paritybit.connectors.hooking import Call, fitting
from paritybit.connectors.transformers.batch import ASKED, asked_of
from paritybit.connectors.transformers.engine import FollowedCache
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings

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
    "reset": "requests.RequestState.create_equivalent_initial_request",
    "records": "continuous_api.ContinuousBatchProcessor.update_batch",
    "idle": "continuous_api.ContinuousBatchProcessor.prepare_next_batch",
}
TARGETS: dict[str, tuple[str, ...]] = {
    name: (f"transformers.generation.continuous_batching.{path}",) for name, path in PATHS.items()
}
TARGETS["share"] = tuple(
    f"transformers.generation.continuous_batching.cache_allocators.cache_allocator.CacheAllocator.{name}"
    for name in ("fork_blocks", "acquire_prefix_blocks", "mark_complete_blocks")
)


class Hooks(Following):
    """Passes each call to the `FollowedCache` of its cache."""

    package, imported = "transformers", True

    def __init__(self, release: str, journal: Journal, settings: Settings) -> None:
        super().__init__(release, journal, settings)
        self.engines: WeakKeyDictionary[Any, FollowedCache] = WeakKeyDictionary()
        """The engines, by cache and by its pool of blocks."""

    def made(self, result: Any, cache: Any, config: Any, continuous_batching_config: Any) -> None:
        """Start to watch a cache."""
        if self.lacking:
            self.report_lacking()
            return
        engine = None
        with self.needing(f"transformers {self.release}: {{}} is not recognised"):
            engine = FollowedCache(cache, self.release, self.journal, self.settings)
        if engine is None:
            return
        owners = (part.allocator for part in engine.parts.values())
        self.engines |= dict.fromkeys((cache, cache.pool, *owners), engine)
        self.journal.scope(  # With the names that sglang uses.
            page_size=continuous_batching_config.page_size,
            disable_overlap_schedule=not continuous_batching_config.use_async_batching,
            disable_radix_cache=not cache.use_prefix_sharing,
            attention_backend=config._attn_implementation,
            device=str(cache.device),
        )

    def failed(self, manager: Any, error: Any) -> None:
        """Judge an error that ends the generation loop."""
        judge(error, self.journal, self.settings)

    def reset(self, result: Any, state: Any) -> None:
        """Remember the parameters of sampling of a request that starts again."""
        setattr(result, ASKED, asked_of(state))

    def method_of(self, name: str) -> Callable[..., Any]:
        """Return a hook that calls the method `name` of the engine that follows a cache."""
        if hasattr(self, name):
            return super().method_of(name)

        def hook(original: Call, owner: Any) -> Any:
            engine = self.engines.get(getattr(owner, "cache", owner))
            return None if engine is None else original.made(fitting(getattr(engine, name)))

        return hook


def install() -> None:
    """Wrap the methods of the engine."""
    Hooks.connect(TARGETS)
