"""What logits processors use for each row, and what its request asked for."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import place_of
from paritybit.connectors.sampling import NOTHING, Asked, Sampled, logits_of, rows_of
from paritybit.connectors.transformers.batch import Batch
from paritybit.watch.facts import RowValues
from paritybit.watch.memory import ours

PACKAGE = "transformers"


def asked_of(state: Any, processor: Any, name: str) -> float:
    """Return a parameter of a request: its own one, or else that of the processor."""
    value: float = state.logit_processor_kwargs.get(name, getattr(processor, name))
    return max(value, processor.min_tokens_to_keep) if name == "top_k" else value


def rows(batch: Batch, processors: Any) -> Iterator[RowValues]:
    """Yield the arguments of the processors that have one per request."""
    given = batch.given.get("logits_processor_args")
    mine = [one.state for one in batch.requests if one.predicted]
    per_request = [one for one in processors.logits_processor if hasattr(one, "supported_kwargs")]
    if given is None or not mine:
        return
    for number, processor in enumerate(per_request):
        for name, kind in processor.supported_kwargs.items():
            held = given[number, : len(mine)]
            held = held.view(torch.float32) if kind is float else held
            right = [asked_of(state, processor, name) for state in mine]
            names = [state.request_id for state in mine]
            source = place_of(processors.prepare_tensor_args, PACKAGE)
            yield rows_of(name, names, held, right, source)


def logits(batch: Batch, processors: Any, raw: Tensor, result: Tensor) -> Iterator[RowValues]:
    """Yield logits [rows, vocabulary] before and after processors that all have an argument."""
    if not all(hasattr(one, "supported_kwargs") for one in processors.logits_processor):
        return
    found = []
    for state in (one.state for one in batch.requests if one.predicted):
        asked: dict[str, Any] = {
            name: asked_of(state, processor, name)
            for processor in processors.logits_processor
            for name in processor.supported_kwargs
        }
        if not asked.keys() <= vars(NOTHING).keys():
            return
        found.append(Sampled(state.request_id, Asked(**asked), 0, []))
    source = place_of(type(processors).__call__, PACKAGE)
    yield from logits_of(found, raw, result, heated=True, sources={"temperature": source})


class Judged:
    """Logits processors in place of the engine's own. `judge` gets logits before and after them."""

    def __init__(self, processors: Any, judge: Callable[[Tensor, Tensor], None]) -> None:
        self.processors, self.judge = processors, judge

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine's processors."""
        return getattr(self.processors, name)

    def __call__(self, ids: Tensor, scores: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Apply the engine's processors. What a graph captures is not judged."""
        module: Any = torch.get_device_module(scores.device)
        if getattr(module, "is_current_stream_capturing", bool)():
            return self.processors(ids, scores, *args, **kwargs)
        with ours():
            raw = scores.clone()
        result = self.processors(ids, scores, *args, **kwargs)
        with ours():
            self.judge(raw, result)
        return result
