"""Forwards of prompts without a graph, which are repeated to see which slots they read."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from paritybit.connectors.repeated import Repeated, attribute, tensors
from paritybit.connectors.sglang.graphs import runs_batches
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
    repeated = Repeated(run, functools.partial(hidden, watching, runner))
    live = len(batch.input_ids)
    copies = models.states is not None and models.states.due  # Made by the first run alone.
    kind = f"{now.forward.kind} forward"
    once = "it copies states first" if copies else models.once

    def outputs() -> dict[str, Tensor]:
        return dict(tensors(repeated.result.logits_output))

    return watcher.eager(
        Replay(runner, kind, live, live, (), repeated.run, outputs, once=once),
        lambda: now.replays + now.pieces == 0,
    )


@contextlib.contextmanager
def hidden(watching: Any, runner: Any) -> Iterator[None]:
    """Hide a run from the connector, and keep what the engine set for the first run."""
    backend = getattr(runner.attn_backend, "full_attn_backend", runner.attn_backend)
    with contextlib.ExitStack() as kept:
        for name in ("now", "requests"):
            kept.enter_context(attribute(watching, name, None))
        for owner, name in ((backend, "forward_metadata"), (runner.token_to_kv_pool, "swa_loc")):
            if hasattr(owner, name):
                kept.enter_context(attribute(owner, name, getattr(owner, name)))
        yield
