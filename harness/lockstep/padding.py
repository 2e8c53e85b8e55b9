"""Values that the harness writes to undefined memory: tails before a replay, outputs after it.

The tails of padded rows get equal values in all engines. In some forwards these are fixed values,
in others those of a live request: an index that padding must not keep then leads to the slots of
that request.

Graphs of the fresh engine also fill the memory that they allocate. A row that no kernel writes
then differs from the subject's, whose graph on CUDA finds the same old bytes at each replay.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from paritybit.harness.lockstep.noise import COUNTS
from paritybit.harness.lockstep.requests import Request
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.reference.batch import RequestSpan
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.graphs.dispatch import ALLOCATORS, replaced
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

LEVEL: Mapping[str, int] = {"custom_mask": 1}
"""The fixed values of tails, by static buffer. The default is 0.

A mask is set and not cleared, so that padded rows still read what their indices name.
"""

ONE = ("hidden_states", "topk_p", "input_embeds")
"""Static buffers of floats. With values of a live request, each element of their tails is 1."""


def padding_values(
    scheduler: Scheduler, spans: Sequence[RequestSpan], forwards: int
) -> Mapping[str, int]:
    """Return the values of kept tails for a forward over `spans`, by static buffer.

    `forwards` counts the earlier forwards of the schedule. The choice is not periodic, so no cycle
    of steps always gets the same one.
    """
    request = _someone(scheduler, spans) if forwards.bit_count() % 2 else None
    return LEVEL if request is None else {**_values_of(scheduler, request), **LEVEL}


def _someone(scheduler: Scheduler, spans: Sequence[RequestSpan]) -> Request | None:
    """Return a request with KV, if possible one that is not in the batch."""
    rows = {span.row for span in spans}
    alive = [request for request in scheduler.running if request.allocation and request.length]
    parked = [
        request for request in alive if request.allocation and request.allocation.row not in rows
    ]
    return next(iter([*parked, *alive]), None)


def _values_of(scheduler: Scheduler, request: Request) -> Mapping[str, int]:
    """Return the values that static buffers have for a request's last token, by name."""
    assert request.allocation is not None
    position = request.length - 1
    full, swa = (scheduler.owner(request).slot(kind, position) for kind in Kind)
    return {
        "input_ids": request.serial % scheduler.config.vocab,
        "topk_index": request.serial % scheduler.config.vocab,
        "req_pool_indices": request.allocation.row,
        "seq_lens": request.length,
        "seq_lens_cpu": request.length,
        "positions": position,
        "out_cache_loc": full,
        "out_cache_loc_swa": swa,
        "mamba_track_indices": request.allocation.state_slot,
        **dict.fromkeys((*ONE, *COUNTS), 1),
    }


def spoil(output: Output) -> None:
    """Overwrite an output with NaN, so that an engine that kept a view of it is detected.

    Integers become 0, which is a valid index.
    """
    for values in output.values():
        values.fill_(math.nan if values.is_floating_point() else 0)


@contextmanager
def spoiled_memory() -> Iterator[None]:
    """Fill newly allocated floating-point tensors with NaN in this context.

    A CUDA graph that is captured meanwhile repeats this at each replay, because its memory is
    shared. A tape does not: it owns its memory, which keeps the last values.
    """
    with replaced(ALLOCATORS, _spoiling):
        yield


def _spoiling(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that allocates and fills."""

    @wraps(allocate)
    def allocated(*args: Any, **kwargs: Any) -> Tensor:
        made = allocate(*args, **kwargs)
        if made.is_floating_point():
            with _disable_current_modes():  # A tape records it otherwise.
                made.fill_(math.nan)
        return made

    return allocated
