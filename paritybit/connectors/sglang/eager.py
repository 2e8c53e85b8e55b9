"""Forwards of prompts without a graph, which are repeated to see which slots they read."""

import contextlib
import functools
from typing import Any

from torch import Tensor

from paritybit.connectors.sglang.graphs import attribute, runs_batches, tensors
from paritybit.connectors.sglang.lists import PREFILLS
from paritybit.watch.facts import Replay
from paritybit.watch.replays.relations import NAMES


def hook(watching: Any, runner: Any) -> None:
    """Wrap the method that runs a prepared batch, once per class of model runner.

    `watching` is the connector's engine. Nothing is wrapped without the check that repeats batches.
    """
    if NAMES[-1] not in watching.watcher.relations.names:
        return
    kind: Any = type(runner)
    name = runs_batches(kind)
    owner = next((one for one in kind.__mro__ if name in vars(one)), kind)
    path = f"{owner.__module__}.{owner.__qualname__}.{name}"
    if name is not None and path not in watching.hooked:
        watching.hooked.add(path)
        watching.hook(path, functools.partial(run_batch, watching))


def run_batch(
    watching: Any, original: Any, runner: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run a batch of the forward under way. Some batches of prompts run again."""
    run = functools.partial(original, runner, batch, *args, **kwargs)
    now, watcher, models = watching.now, watching.watcher, watching.models
    known = now is not None and watcher is not None and batch is now.batch
    if not known or now.model.drafts or now.forward.kind not in PREFILLS:
        return run()
    repeated = Repeated(watching, run, runner)
    live = len(batch.input_ids)
    copies = models.states is not None and models.states.due  # Made by the first run alone.
    kind, again = f"{now.forward.kind} forward", models.repeatable and not copies
    return watcher.eager(
        Replay(runner, kind, live, live, (), repeated.run, repeated.outputs, None, again),
        lambda: now.replays + now.pieces == 0,
    )


class Repeated:
    """A batch that may run several times. The engine's own state is as after the first run."""

    def __init__(self, watching: Any, run: Any, runner: Any) -> None:
        self.watching, self.first, self.runner = watching, run, runner
        self.result: Any = None

    def run(self) -> Any:
        """Run the batch. Only the first run is watched."""
        if self.result is None:
            self.result = self.first()
            return self.result
        backend = getattr(self.runner.attn_backend, "full_attn_backend", self.runner.attn_backend)
        with contextlib.ExitStack() as kept:
            for name in ("now", "requests"):
                kept.enter_context(attribute(self.watching, name, None))
            for owner, name in (
                (backend, "forward_metadata"),
                (self.runner.token_to_kv_pool, "swa_loc"),
            ):
                if hasattr(owner, name):
                    kept.enter_context(attribute(owner, name, getattr(owner, name)))
            self.result = self.first()
        return self.result

    def outputs(self) -> dict[str, Tensor]:
        """Return the outputs of the last run, by name."""
        return dict(tensors(self.result.logits_output, ""))
