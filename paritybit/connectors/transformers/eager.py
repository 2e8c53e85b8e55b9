"""Forwards without a graph, which are repeated to see which slots they read."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.repeated import Repeated
from paritybit.connectors.transformers.batch import Batch
from paritybit.watch.facts import Replay, StaticInput
from paritybit.watch.replays.relations import NAMES


def run_batch(watching: Any, runner: Any, model: Any, batch: Batch, run: Callable[[], Any]) -> Any:
    """Run the batch of the forward under way. Some batches without a graph run again.

    `watching` is the connector's engine. Without the check that repeats batches, only `run` is
    called.
    """
    watcher = watching.watcher
    if NAMES[-1] not in watcher.relations.names:
        return run()
    # Each row has logits, and no compiled code has a hook.
    compiled = any(getattr(runner, f"_compiled_{path}", True) for path in ("varlen", "decode"))
    whole = not compiled and all(one.predicted for one in batch.requests)
    first = functools.partial(computed, runner, model if whole else None, run)
    ids, repeated = batch.given["input_ids"], Repeated(first, contextlib.nullcontext)

    def outputs() -> dict[str, Tensor]:
        """Return the logits of each row. Tokens are not compared, as they may be drawn."""
        _, _, *logits = repeated.result
        if not logits or "logits_to_keep" not in batch.given:
            return {}
        return {"logits": logits[0][0, : len(batch.requests)]}

    # The forward changes its input ids: it carries over tokens of the last batch.
    inputs = [StaticInput("input_ids", ids, ids.shape[-1], ids.shape[-1], axis=1)]
    kind, live, padded = f"{batch.kind} forward", batch.size, batch.padded
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    once = "it waits for other ranks" if ranks else None
    watching.graphed = False
    replay = Replay(runner, kind, live, padded, inputs, repeated.run, outputs, once=once)
    result: Any = watcher.eager(replay, lambda: not watching.graphed)
    return result[0]


def computed(runner: Any, model: Any, run: Callable[[], Any]) -> tuple[Any, ...]:
    """Run a batch. Returns its result, the output ids that it wrote, and logits of `model`."""
    found: list[Tensor] = []
    hook = None

    def note(output: Any) -> None:
        if isinstance(logits := getattr(output, "logits", None), Tensor):
            found.append(logits)

    if model is not None:
        hook = model.register_forward_hook(lambda *given: note(given[-1]))
    try:
        result = run()
    finally:
        if hook is not None:
            hook.remove()
    return result, runner.inputs_and_outputs.get_cb_kwargs()[-1], *found[-1:]
