"""Runs the model without a graph of all of it, and what a forward does besides writing KV."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from paritybit.connectors.hooking import Call

PREPARED = "input_batch", "slot_mappings", "kv_cache_config"
"""Arguments from which the newer runner's attention metadata is built."""


ALONE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
         "decode_context_parallel_size", "prefill_context_parallel_size")  # fmt: skip
"""Numbers of ranks that must be 1."""

EFFECTS = {
    ("parallel_config", "enable_eplb"): "it counts the load of experts",
    ("model_config", "enable_return_routed_experts"): "it records the experts of tokens",
    ("cache_config", "calculate_kv_scales"): "it sets the scales of KV",
}
"""Settings that, if true, give a forward pass an effect of its own, so it may run only once."""


def in_place_of_a_graph(
    runner: Any,
    state: Any,
    metadata: Any,
    prepare: Call,
    hidden: Callable[[], AbstractContextManager[None]],
) -> Callable[[], Any] | None:
    """Return a function that runs the newer runner's model with the inputs of its whole graph."""
    batch: Any
    batch, mappings, config = map(prepare.arguments.get, PREPARED)
    if runner.uses_inputs_embeds or mappings is None or runner.ubatch_runner is not None:
        return None

    def run() -> Any:
        module: Any = sys.modules["vllm.forward_context"]
        layers: Any = sys.modules["vllm.v1.worker.gpu.attn_utils"]
        entered = module.set_forward_context(
            metadata,
            runner.vllm_config,
            num_tokens=batch.num_tokens_after_padding,
            slot_mapping=layers.build_slot_mappings_by_layer(mappings, config),
            is_padding=batch.is_padding,
        )
        inputs = {
            "input_ids": batch.input_ids,
            "positions": batch.positions,
            "inputs_embeds": None,
            "intermediate_tensors": None,
            **state.prepare_inputs(batch, runner.req_states),
        }
        with hidden(), entered:
            output = runner.get_model()(**inputs)
        return output[0] if isinstance(output, tuple) else output

    return run


def context_of() -> Any:
    """Return what the layers of the model are given for the current forward, or None."""
    module = sys.modules.get("vllm.forward_context")
    if module is None or not module.is_forward_context_available():
        return None
    return module.get_forward_context()
