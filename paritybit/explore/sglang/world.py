"""sglang's own objects for a bound: request table, pools, allocator, prefix cache, requests.

The engine reads the settings of a server whose only rank is this process. Every name that a release
reads from them is declared here, or follows a rule. Any other name raises an error.
"""

import os
import re
from array import array
from typing import Any

from paritybit.engines import fetch
from paritybit.engines.loading import EngineModules, named
from paritybit.engines.packages import SGLANG
from paritybit.engines.stubs import Bag, StubFinder
from paritybit.explore.bound import Bound
from paritybit.explore.laws import Tokens
from paritybit.harness.errors import MalformedError

BATCHES = "srt.managers.schedule_batch"
CACHE = "srt.mem_cache"

STUBS = (
    *("IPython", "compressed_tensors", "flashinfer", "gguf", "huggingface_hub", "openai"),
    *("partial_json_parser", "safetensors", "sgl_kernel", "sglang.srt.configs"),
    *("sglang.srt.managers.scheduler", "sglang.srt.managers.tp_worker"),
    *("sglang.srt.model_executor.model_runner", "sglang.srt.server_args"),
    *("torchvision", "transformers", "tvm_ffi"),
)

ABSENT = ("tvm_ffi.cpp",)
"""A compiler below a stub, without which the engine uses torch."""

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "SGLANG_SWA_EVICTION_INTERVAL": "1",
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
    "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    "SGLANG_FORCE_CONFIDENTIAL_COMPUTE": "false",
}
"""Environment variables that are set before the engine is imported.

Slots outside a window are freed immediately. The tree is the one in Python, because the one in Rust
does not expose its nodes. On a machine with a GPU, the engine does not use what is compiled for it.
"""


class Switch:
    """A setting that is off. Some releases read it, and others call it."""

    def __bool__(self) -> bool:
        return False

    def __call__(self) -> bool:
        """Return False."""
        return False


GROUPS = frozenset(
    {
        *("comm", "deterministic", "dllm", "features", "graph", "kernel", "mamba", "moe"),
        *("offload", "overlap"),
    }
)
"""The groups of settings in later releases."""

RANKS = re.compile(r"(attn_)?(cp|dcp|dp|pp|tp)_(rank|size)")
"""Matches the ranks and sizes of groups of processes."""

OFF = re.compile(r"(enable|disable)_\w+|\w+_enabled")
"""Matches the settings that are off."""

SETTINGS: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("max_running_requests", "prefill_max_requests", "radix_cache_backend"),
            *("return_hidden_states_mode", "schedule_low_priority_values_first"),
            *("speculative_algorithm", "speculative_eagle_topk", "speculative_num_steps"),
            "strip_thinking_cache",
        )
    ),
    "attention_backend": "torch_native",
    "decode_attention_backend": "torch_native",
    "device": "cpu",
    "disaggregation_decode_retraction_backup": "none",
    "disaggregation_mode": "null",
    "mamba_radix_cache_strategy": "no_buffer",
    "prefill_attention_backend": "torch_native",
    "retraction_policy": "length",
    "schedule_policy": "fcfs",
    "speculative_num_draft_tokens": 0,
}
"""A server's other default values, except for the sizes of a bound."""


class ServerSettings(Bag):
    """The settings of a server. Each group of settings is the bag itself."""

    def __init__(self, page_size: int, chunk: int) -> None:
        sizes = {"page_size": page_size, "chunked_prefill_size": chunk}
        super().__init__({**SETTINGS, **sizes}, "settings")

    def __getattr__(self, name: str) -> Any:
        if RANKS.fullmatch(name):
            return int(name.endswith("_size"))
        if OFF.fullmatch(name):
            return Switch()
        return self if name in GROUPS else super().__getattr__(name)


def publish(engine: EngineModules, settings: ServerSettings) -> None:
    """Make the engine's own accessors, which modules may have imported, return the settings."""
    arguments: Any = engine.module("srt.server_args")
    arguments.get_global_server_args = lambda: arguments._global_server_args
    arguments._global_server_args = settings
    context: Any = engine.module("srt.runtime_context")
    held = context._CONTEXT
    if hasattr(held, "_server_args"):
        held._server_args = settings
    if hasattr(held, "config_bag"):
        type(held).config_bag = lambda context, name: settings
    held.parallel = settings
    if hasattr(context, "_PARALLEL"):
        context._PARALLEL = settings


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


def load(found: fetch.EngineFolder) -> EngineModules:
    """Load a release or a source tree into this process, without a model."""
    from paritybit.engines import graphs, interpreter  # noqa: PLC0415
    from paritybit.reference.ops import Ops  # noqa: PLC0415

    os.environ.update(ENVIRONMENT)
    graphs.emulate(Ops())
    graphs.implement_on_cpu(SGLANG.name)
    interpreter.quicken()
    folders = [fetch.dependencies_folder() / SGLANG.dependencies[0]]
    return EngineModules(SGLANG.name, found.package, folders, StubFinder(STUBS, ABSENT))


class World:
    """Creates the engine's objects for a bound."""

    def __init__(self, engine: EngineModules, bound: Bound) -> None:
        self.engine, self.bound = engine, bound
        self.chunk = -(-bound.budget // bound.page_size) * bound.page_size
        self.settings = ServerSettings(bound.page_size, self.chunk)
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

    def objects(self) -> tuple[Any, Any, Any]:
        """Return a new request table, allocator and prefix cache of the engine."""
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
        return table, allocator, self.prefix_cache(table, allocator)

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
        made = part(f"{CACHE}.registry:default_radix_cache_factory")(context())
        session = getattr(made, "session", None)
        if session is not None:  # `copy` looks for this method before a copy has any attribute.
            type(session).__setstate__ = lambda one, state: one.__dict__.update(state)
        return made

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
