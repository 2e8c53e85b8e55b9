"""The engine's own objects for a bound: request table, pools, allocator, prefix cache, requests."""

from array import array
from dataclasses import dataclass
from typing import Any

from paritybit.engines import fetch
from paritybit.engines.bags import Bag
from paritybit.engines.loading import Engine, named
from paritybit.engines.packages import SGLANG
from paritybit.explore.bound import Bound
from paritybit.explore.laws import Tokens
from paritybit.explore.sglang.host import Settings, publish
from paritybit.harness.errors import MalformedError

BATCHES = "srt.managers.schedule_batch"
CACHE = "srt.mem_cache"


def require_room(bound: Bound) -> None:
    """Raise MalformedError if one request might not fit, as the engine's server rejects it."""
    least = -(-(bound.longest + 1) // bound.page_size) + 1
    if sliding_pages(bound) < least:
        raise MalformedError(
            f"--slots must be at least {-(-least * 5 // 4)}, so that one request fits into the "
            "sliding pool, which has four fifths of them"
        )


def sliding_pages(bound: Bound) -> int:
    """Return the number of pages of the sliding pool. The full pool has more, as in a server."""
    return bound.slots * 4 // 5


def load(found: fetch.Found) -> Engine:
    """Load a release or a source tree into this process without a model."""
    from paritybit.explore.sglang.loading import load_sglang  # noqa: PLC0415

    return load_sglang(found.package, fetch.dependencies_folder() / SGLANG.dependencies[0])


@dataclass(frozen=True)
class Objects:
    """One request table, allocator and prefix cache of the engine."""

    table: Any
    allocator: Any
    cache: Any


class World:
    """Creates the engine's objects for a bound. Settings are published to the engine once."""

    def __init__(self, engine: Engine, bound: Bound) -> None:
        self.engine, self.bound = engine, bound
        self.chunk = -(-bound.budget // bound.page_size) * bound.page_size
        self.settings = Settings(bound.page_size, self.chunk)
        publish(engine, self.settings)
        self.batch = engine.part(f"{BATCHES}:ScheduleBatch")
        self.adder = engine.part("srt.managers.schedule_policy:PrefillAdder")
        self.abort = engine.part(f"{BATCHES}:FINISH_ABORT")
        self.common = engine.module(f"{CACHE}.common")
        self.release = named(self.common.release_kv_cache, checkpoint=True)
        self.sampling = engine.part("srt.sampling.sampling_params:SamplingParams")
        self.kind = engine.part(f"{BATCHES}:Req")
        self.model = Bag(
            {"is_encoder_decoder": False, "vocab_size": 8, "context_len": bound.longest + 1},
            "model_config",
        )
        self.no_drafts = engine.part("srt.speculative.spec_info:SpeculativeAlgorithm").NONE

    def objects(self) -> Objects:
        """Return new objects of the engine."""
        import torch  # noqa: PLC0415

        part, bound = self.engine.part, self.bound
        size = bound.page_size
        slots, sliding = bound.slots * size, sliding_pages(bound) * size
        common: dict[str, Any] = {"page_size": size, "dtype": torch.float32, "device": "cpu"}
        kv = named(part(f"{CACHE}.swa_memory_pool:SWAKVPool"), enable_kvcache_transpose=False)(
            size=slots,
            size_swa=sliding,
            head_num=1,
            head_dim=1,
            v_head_dim=1,
            swa_head_num=1,
            swa_head_dim=1,
            swa_v_head_dim=1,
            swa_attention_layer_ids=[1],
            full_attention_layer_ids=[0],
            **common,
        )
        allocator = part(f"{CACHE}.allocator.swa:SWATokenToKVPoolAllocator")(
            size=slots, size_swa=sliding, kvcache=kv, need_sort=False, **common
        )
        table = part(f"{CACHE}.memory_pool:ReqToTokenPool")(
            size=bound.requests,
            max_context_len=bound.longest + size,
            device="cpu",
            enable_memory_saver=False,
        )
        return Objects(table, allocator, self.prefix_cache(table, allocator))

    def prefix_cache(self, table: Any, allocator: Any) -> Any:
        """Return the prefix cache that the engine chooses for a hybrid model."""
        part, bound = self.engine.part, self.bound
        parameters = named(
            part(f"{CACHE}.cache_init_params:CacheInitParams"),
            sliding_window_size=bound.window,
            chunked_prefill_size=self.chunk,
        )(
            disable=False,
            req_to_token_pool=table,
            token_to_kv_pool_allocator=allocator,
            page_size=bound.page_size,
            is_eagle=bound.keys == 2,
        )
        context = named(
            part(f"{CACHE}.registry:TreeCacheBuildContext"),
            effective_chunked_prefill_size=self.chunk,
            server_args=self.settings,
            params=parameters,
            is_hybrid_swa=True,
            is_hybrid_ssm=False,
            enable_hierarchical_cache=False,
            disable_radix_cache=False,
            tp_worker=None,
            model_config=None,
            tp_size=1,
            tp_rank=0,
            tp_group=None,
        )
        return part(f"{CACHE}.registry:default_radix_cache_factory")(context())

    def request(self, name: str, prompt: Tokens) -> Any:
        """Return a new request of the engine, which ends at the longest length."""
        parameters = self.sampling(max_new_tokens=self.bound.longest - len(prompt), temperature=0.0)
        parameters.normalize(None)
        made = self.kind(
            rid=name,
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=parameters,
            vocab_size=8,
        )
        if not isinstance(made.output_ids, array):
            made.origin_input_ids = list(prompt)
        return made
