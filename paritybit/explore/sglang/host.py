"""The settings of the server around sglang's prefix cache, whose only rank is this process.

Every name that a release reads from its settings is declared here. Any other name raises an error.
"""

from typing import Any

from paritybit.engines.bags import Bag
from paritybit.engines.loading import Engine


class Switch:
    """A setting that is off. Some releases read it, and others call it."""

    def __bool__(self) -> bool:
        return False

    def __call__(self) -> bool:
        """Return whether it is on."""
        return False


GROUPS = frozenset(
    {
        *("comm", "deterministic", "dllm", "features", "graph", "kernel", "mamba", "moe"),
        *("offload", "overlap"),
    }
)
"""The groups of settings in later releases."""

SETTINGS: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("attn_cp_rank", "attn_dcp_rank", "attn_dp_rank", "attn_tp_rank", "dcp_rank"),
            *("pp_rank", "tp_rank", "speculative_num_draft_tokens"),
        ),
        0,
    ),
    **dict.fromkeys(
        (
            *("attn_cp_size", "attn_dcp_size", "attn_dp_size", "attn_tp_size", "dcp_size"),
            *("dp_size", "pp_size", "tp_size"),
        ),
        1,
    ),
    **dict.fromkeys(
        (
            *("max_running_requests", "prefill_max_requests", "radix_cache_backend"),
            *("return_hidden_states_mode", "speculative_algorithm", "speculative_eagle_topk"),
            "speculative_num_steps",
        )
    ),
    **dict.fromkeys(
        (
            *("dcp_enabled", "disable_radix_cache", "enable_custom_logit_processor"),
            *("enable_deterministic_inference", "enable_dp_attention"),
            *("enable_dsa_prefill_context_parallel", "enable_encoder_swa_bounded_replay"),
            *("enable_flexkv", "enable_hierarchical_cache", "enable_kv_cache_sharding"),
            *("enable_lmcache", "enable_memory_saver", "enable_mis"),
            *("enable_nsa_prefill_context_parallel", "enable_prefill_context_parallel"),
            *("enable_two_batch_overlap", "enable_unified_cache_external_linker"),
            *("enable_watermark", "schedule_low_priority_values_first", "strip_thinking_cache"),
        ),
        False,
    ),
    "attention_backend": "torch_native",
    "decode_attention_backend": "torch_native",
    "device": "cpu",
    "disaggregation_decode_retraction_backup": "none",
    "disaggregation_mode": "null",
    "enable_mamba_extra_buffer": Switch(),
    "enable_mamba_extra_buffer_lazy": Switch(),
    "mamba_radix_cache_strategy": "no_buffer",
    "prefill_attention_backend": "torch_native",
    "retraction_policy": "length",
    "schedule_policy": "fcfs",
}
"""A server's default values, except for the sizes of a bound."""


class Settings(Bag):
    """The settings of a server. Each group of settings is the bag itself."""

    def __init__(self, page_size: int, chunk: int) -> None:
        sizes = {"page_size": page_size, "chunked_prefill_size": chunk}
        super().__init__({**SETTINGS, **sizes}, "settings")

    def __getattr__(self, name: str) -> Any:
        return self if name in GROUPS else super().__getattr__(name)


def publish(engine: Engine, settings: Settings) -> None:
    """Make the engine's own accessors return the settings.

    Modules of the engine keep the accessor from the time of their import, so the accessor must
    return the settings that were published last.
    """
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
