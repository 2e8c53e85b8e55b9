"""LoRA adapters: whose weights each token of a batch uses.

The engine keeps the weights of a few adapters in numbered buffers. A batch has segments of tokens
with a buffer each. A buffer with the rank 0 stands for the base model. Kernels read all segments,
so each token must be in one with its adapter, and in no other.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paritybit.connectors.following import expected
from paritybit.connectors.sglang.attention import spans_of
from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import Rows, mode_of
from paritybit.watch.facts import StaticInput

BASE, TWICE = -1, -2
"""Stand for a token that no adapter is applied to, and for one that several segments have."""


def buffers_used(
    model: Model, batch: Any, found: Rows, requests: Sequence[Any]
) -> list[StaticInput]:
    """Return the buffers that the tokens of a prepared batch use."""
    manager = getattr(model.runner, "lora_manager", None)
    owners = getattr(getattr(manager, "memory_pool", None), "buffer_id_to_uid", None)
    info = getattr(getattr(manager, "lora_backend", None), "batch_info", None)
    # With data-parallel attention, the forward itself prepares the batch.
    late = model.drafts or getattr(manager, "attn_dp_enabled", False)
    if late or owners is None or info is None or not found.rows:
        return []
    names = {request.rid: getattr(request, "lora_id", None) for request in requests}
    of_rows = dict(zip(found.batch_rows, found.rows, strict=True))
    spans = spans_of(batch, mode_of(batch), found)
    wanted = [
        holder(owners, names[row.request])
        for at, row in of_rows.items()
        for _ in range(spans[at][1])
    ]
    used = torch.tensor(used_by(info, len(wanted)))
    return [expected("weight_indices", used, wanted, info.weight_indices)]


def used_by(info: Any, count: int) -> list[int]:
    """Return the buffer of the adapter that is applied to each of the first `count` tokens."""
    ranks, order = info.lora_ranks.tolist(), getattr(info, "permutation", None)
    places = range(count) if order is None else order.tolist()
    found = [BASE] * count
    for buffer, first, last in segments(info):
        if not ranks[buffer]:
            continue
        for token in places[first:last]:
            if token < count:
                found[token] = buffer if found[token] == BASE else TWICE
    return found


def segments(info: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the buffer of each segment that the kernels read, its start and its end."""
    starts, lengths = info.seg_indptr.tolist(), getattr(info, "seg_lens", None)
    buffers = info.weight_indices.tolist()
    if lengths is not None and bool(lengths.any()):
        lengths = lengths.tolist()
        for place in range(info.bs):
            yield buffers[place], starts[place], starts[place] + lengths[place]
    else:
        for place in range(len(buffers) if info.use_cuda_graph else info.num_segments):
            yield buffers[place], starts[place], starts[place + 1]


def holder(owners: Sequence[Any], name: str | None) -> int:
    """Return the buffer with an adapter. Without an adapter or a buffer of it, it is BASE."""
    if name is None:
        return BASE
    return next((place for place, owner in enumerate(owners) if owner == name), TWICE - 1)
