"""What the harness writes where nothing is defined: tails before a replay, outputs after it.

Padded rows are equal if their tails are. In turn they are level, and one value of a request that
is alive: an index that padding keeps, and should not, then leads to that request's slots.

The fresh engine's graphs also fill what they allocate: a row that no kernel writes is then not
what the memory held, which in a graph on CUDA is the same at every replay.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paritybit.harness.lockstep.noise import COUNTS
from paritybit.harness.lockstep.requests import Request
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.reference.batch import Span
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.graphs.dispatch import ALLOCATORS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

LEVEL: Mapping[str, int] = {"custom_mask": 1}
"""Values of level tails, by the name of a static buffer; 0 where none is said.

A mask is set, not cleared: padded rows must go on reading what their indices say.
"""

ONE = ("hidden_states", "topk_p", "input_embeds")
"""Static buffers of floats: where padding is not level, each element of their tails is 1."""


def padding_values(world: Scheduler, spans: Sequence[Span], forwards: int) -> Mapping[str, int]:
    """Return what the kept tails of a forward over `spans` hold, by the name of a static buffer.

    `forwards` counts the schedule's forwards before it. The turns have no period, so that no
    cycle of steps meets the same one always.
    """
    request = _someone(world, spans) if forwards.bit_count() % 2 else None
    return LEVEL if request is None else {**_values_of(world, request), **LEVEL}


def _someone(world: Scheduler, spans: Sequence[Span]) -> Request | None:
    """Return a request with KV: one that the batch leaves out, if there is one."""
    rows = {span.row for span in spans}
    alive = [request for request in world.running if request.allocation and request.length]
    parked = [
        request for request in alive if request.allocation and request.allocation.row not in rows
    ]
    return next(iter([*parked, *alive]), None)


def _values_of(world: Scheduler, request: Request) -> Mapping[str, int]:
    """Return what static buffers hold of a request's last token, by name."""
    assert request.allocation is not None
    position = request.length - 1
    full, swa = (world.owner(request).slot(kind, position) for kind in Kind)
    return {
        "input_ids": request.serial % world.config.vocab,
        "topk_index": request.serial % world.config.vocab,
        "req_pool_indices": request.allocation.row,
        "seq_lens": request.length,
        "seq_lens_cpu": request.length,
        "positions": position,
        "mrope_positions": position,
        "out_cache_loc": full,
        "out_cache_loc_swa": swa,
        "mamba_track_indices": request.allocation.state_slot,
        "mamba_track_mask": 1,
        "encoder_lens": request.encoder_len,
        "lora_ids": request.lora_id,
        **dict.fromkeys((*ONE, *COUNTS), 1),
    }


def spoil(output: Output) -> None:
    """Overwrite an output that was read: whoever keeps a view of it, and no copy, has NaN.

    Whole numbers become 0, which is valid wherever they are used as an index.
    """
    for values in output.values():
        values.fill_(math.nan if values.is_floating_point() else 0)


class SpoiledMemory(TorchFunctionMode):
    """Fills new tensors of floating point that nothing has written with NaN, while entered.

    A CUDA graph that is captured meanwhile does so at each replay, into memory that it shares. A
    tape does not: its memory is its own, and holds what was last written there.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and fill what it only allocated."""
        made = func(*args, **(kwargs or {}))
        if func in ALLOCATORS and made.is_floating_point():
            with _disable_current_modes():  # A tape records it otherwise.
                made.fill_(math.nan)
        return made
