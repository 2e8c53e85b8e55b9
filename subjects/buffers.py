"""Static buffers: allocated once, shared by name, populated before each replay.

Graphs record their addresses, so values are copied into them and they are never replaced.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from paritybit.subjects.contracts import Contract, Extents, Policy
from torch import Tensor


class SharedBufferError(ValueError):
    """Two runners want a static buffer of the same name in different dtypes."""


class BufferPool:
    """The static buffers of one run, shared by name as in the engine.

    A pooled buffer that is large enough is reused. Otherwise a new, larger one replaces it in the
    pool, and the runners that hold the old one keep it. The stale tail of a buffer may therefore
    hold what another runner left there.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pooled: dict[str, Tensor] = {}

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        value: int,
        *,
        host: bool = False,
    ) -> Tensor:
        """Return a buffer of `shape` called `name`. A new buffer is filled with `value`.

        Raises SharedBufferError if the pooled buffer of that name has another dtype.
        """
        pooled = self.pooled.get(name)
        if pooled is not None and pooled.dtype != dtype:
            raise SharedBufferError(
                f"static buffer {name} is shared as {pooled.dtype}, not {dtype}"
            )
        numel = torch.Size(shape).numel()
        if pooled is None or pooled.numel() < numel:
            device = torch.device("cpu") if host else self.device
            pooled = torch.full((numel,), value, dtype=dtype, device=device)
            self.pooled[name] = pooled
        return pooled[:numel].view(shape)


class StaticInputs:
    """The static inputs of one runner: one buffer per row of its contract.

    - `extents`: the extents of the largest bucket.
    - `dtype`: the model's dtype, for rows without a dtype.
    - `hidden`: the model's width, for rows that are as wide.
    """

    def __init__(
        self,
        contract: Contract,
        extents: Extents,
        pool: BufferPool,
        dtype: torch.dtype,
        hidden: int,
    ) -> None:
        self.buffers = {
            row.name: pool.get(
                row.name,
                row.shape(extents, hidden),
                row.dtype or dtype,
                row.value if row.allocated is None else row.allocated,
                host=row.host,
            )
            for row in contract
        }
        self.rows = {row.name: row for row in contract}

    def view(self, name: str, extents: Extents) -> Tensor:
        """Return the part of buffer `name` that a bucket with these extents reads."""
        row = self.rows[name]
        return self.buffers[name][: row.extent(extents)]

    def populate(
        self, live_values: Mapping[str, Tensor], *, padded: bool, padded_on_host: bool | None = None
    ) -> None:
        """Reset the padding of a padded batch as the contract says, then copy the live values.

        `live_values` maps a row's name to its live values, along the row's axis. Host rows are
        reset if `padded_on_host`, which defaults to `padded`.
        """
        padded_on_host = padded if padded_on_host is None else padded_on_host
        for row in self.rows.values():
            if row.policy is Policy.RESET and (padded_on_host if row.host else padded):
                self.buffers[row.name].fill_(row.value)
        copy_together(
            (self.buffers[name][: values.shape[0]], values)
            for name, values in live_values.items()
            if values.numel() > 0
        )


def copy_together(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy all (destination, source) pairs, one batched call per pair of dtypes and device."""
    groups: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]]
    groups = defaultdict(lambda: ([], []))
    for destination, source in pairs:
        key = destination.dtype, source.dtype, destination.device
        destinations, sources = groups[key]
        destinations.append(destination)
        sources.append(source)
    for destinations, sources in groups.values():
        torch._foreach_copy_(destinations, sources)
