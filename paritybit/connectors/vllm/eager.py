"""Runs the model without a graph of all of it."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from paritybit.connectors.hooking import passed

PREPARED = "input_batch", "slot_mappings", "kv_cache_config"
"""Arguments from which the newer runner's attention metadata is built."""


def model_of(runner: Any) -> Any:
    """Return the model of a runner without a wrapper that holds its graphs. None if it has none."""
    return runner.get_model() if hasattr(runner, "get_model") else getattr(runner, "model", None)


def in_place_of_a_graph(
    runner: Any,
    state: Any,
    metadata: Any,
    prepare: functools.partial[Any],
    hidden: Callable[[], AbstractContextManager[None]],
) -> Callable[[], Any] | None:
    """Return a function that runs the newer runner's model with the inputs of its whole graph."""
    batch: Any
    batch, mappings, config = map(passed(prepare).get, PREPARED)
    embeds = getattr(runner, "uses_inputs_embeds", getattr(runner, "supports_mm_inputs", True))
    if embeds or mappings is None or getattr(runner, "ubatch_runner", None) is not None:
        return None

    def run() -> Any:
        module: Any = sys.modules["vllm.forward_context"]
        layers: Any = sys.modules["vllm.v1.worker.gpu.attn_utils"]
        context = {"is_padding": batch.is_padding} if hasattr(batch, "is_padding") else {}
        entered = module.set_forward_context(
            metadata,
            runner.vllm_config,
            num_tokens=batch.num_tokens_after_padding,
            slot_mapping=layers.build_slot_mappings_by_layer(mappings, config),
            **context,
        )
        inputs = {
            "input_ids": batch.input_ids,
            "positions": batch.positions,
            "inputs_embeds": None,
            "intermediate_tensors": None,
            **state.prepare_inputs(batch, runner.req_states),
        }
        with hidden(), entered:
            output = model_of(runner)(**inputs)
        return output[0] if isinstance(output, tuple) else output

    return run


def context_of() -> Any:
    """Return what the layers of the model are given for the current forward, or None."""
    module = sys.modules.get("vllm.forward_context")
    if module is None or not module.is_forward_context_available():
        return None
    return module.get_forward_context()


@contextlib.contextmanager
def as_before(context: Any, before: Mapping[str, Any]) -> Iterator[None]:
    """Set a context to what it was, and then to what it is now."""
    after = dict(vars(context))
    vars(context).update(before)
    try:
        yield
    finally:
        vars(context).update(after)
