"""What a forward pass does besides writing KV: it may then run only once."""

from typing import Any

ALONE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
         "decode_context_parallel_size", "prefill_context_parallel_size")  # fmt: skip
"""Numbers of ranks that must be 1 if a release has them."""

EFFECTS = {
    ("parallel_config", "enable_eplb"): "it counts the load of experts",
    ("model_config", "enable_return_routed_experts"): "it records the experts of tokens",
    ("cache_config", "calculate_kv_scales"): "it sets the scales of KV",
}
"""Settings that, if true, give a forward pass an effect of its own."""


def ranks(config: Any) -> list[str]:
    """Return the names of the numbers of ranks that are not 1."""
    return [name for name in ALONE if getattr(config.parallel_config, name, 1) != 1]


def once(config: Any) -> str | None:
    """Return why a forward pass of an engine may run only once, or None."""
    if ranks(config):
        return "it waits for other ranks"
    for (part, name), effect in EFFECTS.items():
        if getattr(getattr(config, part, None), name, False):
            return effect
    return None
