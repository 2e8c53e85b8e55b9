"""Forwards without a graph, which are repeated to see which slots they read."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
    repeated = Repeated(runner, model, batch, run)
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    watching.graphed = False
    ran: Any = watcher.eager(
        Replay(
            runner, f"{batch.kind} forward", batch.size, batch.padded, repeated.inputs(),
            repeated.run, repeated.outputs, repeatable=not ranks,
        ),
        lambda: not watching.graphed,
    )  # fmt: skip
    return ran[0]


class Repeated:
    """A batch that may run several times. Only the first run draws the engine's random numbers."""

    def __init__(self, runner: Any, model: Any, batch: Batch, first: Callable[[], Any]) -> None:
        self.runner, self.model, self.batch, self.first = runner, model, batch, first
        self.input_ids: Tensor = batch.given["input_ids"]
        self.ran, self.logits = False, None
        compiled = runner._compiled_varlen or runner._compiled_decode
        self.kept = not compiled and all(one.predicted for one in batch.requests)
        """Whether logits are kept: there are some for each row, and no compiled code has a hook."""

    def run(self) -> tuple[Any, Tensor]:
        """Run the batch. Returns what the engine gets, and the output ids, which it writes."""
        device = self.input_ids.device
        devices = [] if device.type == "cpu" else [device]
        hook = self.model.register_forward_hook(self.keep) if self.kept else None
        try:
            with torch.random.fork_rng(devices, enabled=self.ran, device_type=device.type):
                self.ran = True
                return self.first(), self.runner.inputs_and_outputs.get_cb_kwargs()[-1]
        finally:
            if hook is not None:
                hook.remove()

    def keep(self, model: Any, given: Any, output: Any) -> None:
        """Keep the logits that the model returns."""
        del model, given
        self.logits = output.logits

    def inputs(self) -> list[StaticInput]:
        """Return the inputs that the forward changes: it carries over tokens of the last batch."""
        size = self.input_ids.shape[-1]
        return [StaticInput("input_ids", self.input_ids, size, size, axis=1)]

    def outputs(self) -> dict[str, Tensor]:
        """Return the logits of each row. Tokens are not compared, as they may be drawn."""
        if self.logits is None or "logits_to_keep" not in self.batch.given:
            return {}
        return {"logits": self.logits[0, : len(self.batch.requests)]}
