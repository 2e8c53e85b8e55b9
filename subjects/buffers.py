"""Static buffers: allocated once, shared by name, populated before each replay.

A graph has recorded their addresses, so they are copied into and never replaced.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from subjects.contracts import Axis, Contract, Policy, StaticInput


class BufferPool:
    """The static buffers of one world, coalesced by name as the engine does.

    A larger pooled buffer is reused; a larger new one becomes the pooled one, and
    whoever holds the old one keeps it. So a stale tail may be another runner's.
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
        """Return a buffer of `shape` called `name`, filled with `value` if it is newly made.

        Raises ValueError if the pooled buffer of that name has another dtype.
        """
        pooled = self.pooled.get(name)
        if pooled is not None and pooled.dtype != dtype:
            raise ValueError(f"static buffer {name} is shared as {pooled.dtype}, not {dtype}")
        numel = torch.Size(shape).numel()
        if pooled is None or pooled.numel() < numel:
            device = torch.device("cpu") if host else self.device
            pooled = torch.full((numel,), value, dtype=dtype, device=device)
            self.pooled[name] = pooled
        return pooled[:numel].view(shape)


class StaticInputs:
    """The static inputs of one runner: its contract's rows, each with its buffer."""

    def __init__(self, contract: Contract, requests: int, tokens: int, pool: BufferPool) -> None:
        self.contract = contract
        self.buffers = {
            row.name: pool.get(
                row.name, row.shape(requests, tokens), row.dtype, row.value, host=row.host
            )
            for row in contract
        }
        reset = [row for row in contract if row.policy is Policy.RESET]
        self._zeroed = [self.buffers[row.name] for row in reset if not row.value]
        self._filled = [(self.buffers[row.name], row.value) for row in reset if row.value]
        self.conversions: set[tuple[str, torch.dtype, torch.dtype]] = set()

    def view(self, name: str, requests: int, tokens: int) -> Tensor:
        """Return the part of buffer `name` that a bucket of that size reads."""
        return bucket_view(self.row(name), self.buffers[name], requests, tokens)

    def row(self, name: str) -> StaticInput:
        """Return the contract's row called `name`."""
        return next(row for row in self.contract if row.name == name)

    def populate(self, heads: Mapping[str, Tensor], *, padded: bool) -> None:
        """Reset what the contract resets if the batch is padded, then copy all heads.

        `heads` maps a row's name to its live values, along the row's axis. The copies
        are batched by (destination dtype, source dtype), since one batched copy needs
        a uniform pair; host buffers are copied by themselves.
        """
        if padded:
            if self._zeroed:  # One batched call; it refuses to be asked for nothing.
                torch._foreach_zero_(self._zeroed)
            for buffer, value in self._filled:
                buffer.fill_(value)
        groups: dict[tuple[torch.dtype, torch.dtype, bool], tuple[list[Tensor], list[Tensor]]]
        groups = defaultdict(lambda: ([], []))
        for row in self.contract:
            head = heads.get(row.name)
            if head is None or head.numel() == 0:
                continue
            if head.dtype != row.dtype:
                self.conversions.add((row.name, head.dtype, row.dtype))
            buffer = self.buffers[row.name]
            destinations, sources = groups[row.dtype, head.dtype, row.host]
            destinations.append(buffer[..., : head.shape[-1]])
            sources.append(head)
        for destinations, sources in groups.values():
            torch._foreach_copy_(destinations, sources)


def bucket_view(row: StaticInput, buffer: Tensor, requests: int, tokens: int) -> Tensor:
    """Return the part of a row's buffer that a bucket of that size reads."""
    return buffer[..., : row.shape(requests, tokens)[-1]]


def tail_view(row: StaticInput, buffer: Tensor, live: int, bucket: int) -> Tensor:
    """Return the padded part [live:bucket] of a row's buffer, empty for a scalar."""
    return buffer[..., 0:0] if row.axis is Axis.SCALAR else buffer[..., live:bucket]
