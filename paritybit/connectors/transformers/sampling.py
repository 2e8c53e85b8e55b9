"""What logits processors use for each row, and what its request asked for."""

from collections.abc import Iterator
from typing import Any

import torch

from paritybit.connectors.hooking import place_of
from paritybit.connectors.sampling import rows_of
from paritybit.connectors.transformers.batch import Batch
from paritybit.watch.facts import RowValues


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
            source = place_of(processors.prepare_tensor_args)
            yield rows_of(name, names, held, right, source)
