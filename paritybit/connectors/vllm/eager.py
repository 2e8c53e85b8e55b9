"""Runs the model without a graph of all of it: in the engine's own forwards, or to check a replay.

Some of the engine's own forwards are repeated to see what they read.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from paritybit.connectors.hooking import Call, passed, wrap
from paritybit.connectors.repeated import Repeated, attribute, tensors
from paritybit.watch.facts import Replay, StaticInput
from paritybit.watch.replays.relations import NAMES

PREPARED = "input_batch", "slot_mappings", "kv_cache_config"
"""Arguments from which the newer runner's attention metadata is built."""


def hook(watching: Any, runner: Any) -> None:
    """Wrap the call of a runner's model, once per class.

    `watching` is the connector's engine. Without the check that repeats forwards, nothing is
    wrapped.
    """
    kind = type(model_of(runner))
    if not judges_reads(watching.watcher) or kind is type(None):
        return
    if kind not in watching.called:
        watching.called.add(kind)
        wrap(kind, "__call__", watching.model)


def model_of(runner: Any) -> Any:
    """Return the model of a runner without a wrapper that holds its graphs. None if it has none."""
    return runner.get_model() if hasattr(runner, "get_model") else getattr(runner, "model", None)


def run_model(watching: Any, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the model of the forward under way. Some forwards run again.

    `owner` is the model, or what else of the runner calls it.
    """
    run = functools.partial(original, owner, *args, **kwargs)
    now, watcher, context = watching.now, watching.watcher, context_of()
    if watcher is not None:
        watcher.lines.stop()
    if now is None or now.batch is None or now.called or context is None or holds_all(context):
        return run()
    runner, live = now.runner, now.batch.live[1]
    if owner not in (runner, model_of(runner), getattr(runner, "cudagraph_manager", None)):
        return run()
    now.called = True
    watcher.inputs("model", given_to_model(now, kwargs))
    result = watched(watching, context, run, kwargs) if judges_reads(watcher) else run()
    watching.states = next((one[:live] for _, one in tensors(result)), None)
    return result


def judges_reads(watcher: Any) -> bool:
    """Return whether the check that repeats forwards is selected."""
    return NAMES[-1] in watcher.relations.names


def watched(
    watching: Any, context: Any, run: Callable[[], Any], kwargs: Mapping[str, Any]
) -> object:
    """Run the model, and again if a test is due. Returns the result of the first run."""
    now, runner, live = watching.now, watching.now.runner, watching.now.batch.live[1]
    inputs = [
        StaticInput(name, tensor, live=len(tensor), size=len(tensor))
        for name, tensor in tensors(kwargs)
        if tensor.ndim
    ]
    repeated = Repeated(run, functools.partial(hidden, watching, context, dict(vars(context))))

    def outputs() -> dict[str, Tensor]:
        return {name: tensor[:live] for name, tensor in tensors(repeated.result)}

    kind = f"{now.forward.kind} forward"
    once = watching.once or ("it runs on two threads" if splits(context) else None)
    replay = Replay(runner, kind, live, live, inputs, repeated.run, outputs, once=once)
    return watching.watcher.eager(replay, lambda: True)


def given_to_model(now: Any, kwargs: Mapping[str, Any]) -> list[StaticInput]:
    """Return the positions that a model gets without a graph, with those that its rows imply.

    Positions of several dimensions are not judged.
    """
    positions = kwargs.get("positions")
    if not isinstance(positions, Tensor) or positions.ndim != 1:
        return []
    expected = now.batch.expected_positions(now.forward)
    return [StaticInput("positions", positions, len(expected), len(positions), expected=expected)]


def in_place_of_a_graph(
    watching: Any, state: Any, metadata: Any, prepare: Call
) -> Callable[[], Any] | None:
    """Return a function that runs the newer runner's model with the inputs of its whole graph.

    `prepare` is the call by which `state` made the attention metadata. None if the model gets other
    inputs, too.
    """
    runner = watching.now.runner
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
        with attribute(watching, "now", None), entered:
            output = model_of(runner)(**inputs)
        return output[0] if isinstance(output, tuple) else output

    return run


def context_of() -> Any:
    """Return what the layers of the model are given for the current forward, or None."""
    module = sys.modules.get("vllm.forward_context")
    if module is None or not module.is_forward_context_available():
        return None
    return module.get_forward_context()


def holds_all(context: Any) -> bool:
    """Return whether a graph of the whole model replays."""
    mode = getattr(context, "cudagraph_runtime_mode", None)
    return str(getattr(mode, "name", "FULL")) == "FULL"


def splits(context: Any) -> bool:
    """Return whether a forward runs as two micro-batches, on threads of the engine."""
    return bool(getattr(context, "ubatch_slices", None))


@contextlib.contextmanager
def hidden(watching: Any, context: Any, before: Mapping[str, Any]) -> Iterator[None]:
    """Hide a run from the connector. The context is as `before`, and then as it is now."""
    after = dict(vars(context))
    vars(context).update(before)
    try:
        with attribute(watching, "now", None):
            yield
    finally:
        vars(context).update(after)
