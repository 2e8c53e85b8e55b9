"""The engine's prefix cache, switched off: what its scheduler frees slots through."""

from typing import Any

from paritybit.reference.config import ModelConfig
from paritybit.subjects.engines.sglang.host.host import Host
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.shared.loading import named
from paritybit.subjects.engines.shared.missing import PartMissingError

CHOICE = "srt.mem_cache.registry:default_radix_cache_factory"
"""The engine's choice of a prefix cache; before there was one its scheduler chose, as we do."""


def prefix_cache(host: Host, pool: SglangPool, config: ModelConfig) -> Any:
    """Return the cache that the engine's scheduler has over a pool when prefixes are not shared."""
    part = host.engine.part
    parameters = named(
        part("srt.mem_cache.cache_init_params:CacheInitParams"),
        sliding_window_size=config.window,
        chunked_prefill_size=host.arguments.chunked_prefill_size,
    )(
        disable=True,
        req_to_token_pool=pool.requests,
        token_to_kv_pool_allocator=pool.allocator,
        page_size=pool.sizes.page_size,
    )
    try:
        choose = part(CHOICE)
    except PartMissingError:
        return part("srt.mem_cache.chunk_cache:SWAChunkCache")(parameters)
    chunk = host.arguments.chunked_prefill_size
    return choose(choice_of(host, parameters, chunk, disabled=True))


def choice_of(host: Host, parameters: Any, chunk: int | None, *, disabled: bool) -> Any:
    """Return what the engine's choice of a prefix cache is made from, for a hybrid model."""
    context = named(
        host.engine.part("srt.mem_cache.registry:TreeCacheBuildContext"),
        effective_chunked_prefill_size=chunk,
        server_args=host.arguments,
        params=parameters,
        is_hybrid_swa=True,
        is_hybrid_ssm=False,
        enable_hierarchical_cache=False,
        disable_radix_cache=disabled,
        tp_worker=None,
        model_config=None,
        tp_size=1,
        tp_rank=0,
        tp_group=None,
    )
    return context()
