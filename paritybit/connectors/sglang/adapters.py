"""LoRA adapters: whose weights each row of a batch uses.

The engine keeps the weights of a few adapters in numbered buffers. A batch has the number of a
buffer for each row, and for each buffer the rank of its adapter in this batch. A row whose buffer
has the rank 0 uses the weights of the base model only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import StaticInput

INDICES, RANKS = "weight_indices", "lora_ranks"


def buffers_used(model: Model, found: Rows, requests: Sequence[Any]) -> list[StaticInput]:
    """Return the buffers that the rows of a prepared batch use, and whether these add an adapter.

    The result is empty without adapters, and if the release does not say whose each buffer is.
    """
    manager = getattr(model.runner, "lora_manager", None)
    pool, backend = (getattr(manager, name, None) for name in ("memory_pool", "lora_backend"))
    owners, info = getattr(pool, "buffer_id_to_uid", None), getattr(backend, "batch_info", None)
    # With data-parallel attention, the forward itself prepares the batch.
    late = model.drafts or getattr(manager, "attn_dp_enabled", False)
    if late or owners is None or not found.rows:
        return []
    names = {request.rid: getattr(request, "lora_id", None) for request in requests}
    rows = dict(zip(found.batch_rows, found.rows, strict=True))
    wanted = [names[row.request] for row in rows.values()]
    indices, ranks = buffers_of(info, len(wanted)), getattr(info, RANKS, None)
    if indices is None or ranks is None:
        return []
    pairs = zip(wanted, indices.tolist(), strict=True)
    expected = {
        INDICES: (indices, indices, [holder(owners, name, number) for name, number in pairs]),
        RANKS: (
            ranks,
            ranks[indices.long()].clamp(max=1),
            [int(name is not None) for name in wanted],
        ),
    }
    count = len(wanted)
    return [
        StaticInput(name, used, count, count, expected=torch.tensor(right), copied=held)
        for name, (held, used, right) in expected.items()
    ]


def buffers_of(info: Any, rows: int) -> Tensor | None:
    """Return the buffer of each row, int [rows], or None if the batch has other segments."""
    indices: Tensor | None = getattr(info, f"req_{INDICES}", None)
    if indices is None and getattr(info, "permutation", None) is None:
        indices = getattr(info, INDICES, None) if getattr(info, "num_segments", 0) == rows else None
    return None if indices is None else indices[:rows]


def holder(owners: Sequence[Any], name: str | None, number: int) -> int:
    """Return the buffer with an adapter: `number` if it has it or none is needed, -1 for none."""
    if name is None or owners[number] == name:
        return number
    return next((place for place, owner in enumerate(owners) if owner == name), -1)
