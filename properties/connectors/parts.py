"""Stand-ins for the parts of sglang that its connector looks at: the least that has their names."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import Call, fitting

SIZE, PAGE, WINDOW = 64, 1, 4
"""Slots of a pool besides the reserved page, slots of a page, and sglang's sliding_window_size."""


class Part(SimpleNamespace):
    """A part of the engine with any attributes."""

    __hash__ = object.__hash__  # type: ignore[assignment]


KEPT: list[Any] = []


def kept(part: Any) -> Any:
    """Keep a part alive, as the engine does, and return it. The connector does not."""
    KEPT.append(part)
    return part


def hooked(method: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a hook as the engine does. An error of the connector is raised."""
    return Call(original, args, kwargs).made(fitting(method))


class SubPool:
    """A pool of one group with two layers, K wider than V, as of MHATokenToKVPool."""

    def __init__(self, size: int, page: int, start_layer: int = 0) -> None:
        self.size, self.page_size, self.start_layer = size, page, start_layer
        self.k_buffer = [torch.zeros(size + page, 1, 4) for _ in range(2)]
        self.v_buffer = [torch.zeros(size + page, 1, 2) for _ in range(2)]

    def write(self, slots: Tensor, values: Tensor) -> None:
        """Write values, one per slot, into all layers."""
        for tensor in (*self.k_buffer, *self.v_buffer):
            tensor[slots.long()] = (
                values.view(-1, 1, 1).to(tensor.dtype).expand(-1, *tensor.shape[1:])
            )


class SlidingPool:
    """A pool with a full and a sliding sub-pool, as of SWAKVPool. Slot s slides to s + 1."""

    def __init__(self, size: int = SIZE, page: int = PAGE) -> None:
        self.size, self.page_size = size, page
        self.full_kv_pool, self.swa_kv_pool = SubPool(size, page), SubPool(size + 8, page)
        self.full_to_swa_index_mapping = torch.arange(1, size + page + 1)
        self.full_to_swa_index_mapping[0] = 0


class TokenAllocator:
    """An allocator of single slots, as of TokenToKVPoolAllocator."""

    page_size = 1

    def __init__(self, size: int) -> None:
        self.free_pages = torch.arange(1, size + 1)
        self.release_pages = torch.empty(0, dtype=torch.int64)
        self.is_not_in_free_group = True
        self.free_group: list[Tensor] | None = []


class TritonAttnBackend:
    """A backend that lists all positions for a decode and the cached ones for a prefill."""

    def __init__(self, pool: Any, table: Tensor) -> None:
        self.pool, self.table, self.sliding_window_size = pool, table, WINDOW

    def init_forward_metadata(self, batch: Any) -> None:
        """Build the lists of all positions and of the last ones, without any padding."""
        decode = batch.forward_mode.name == "DECODE"
        lengths = batch.seq_lens.tolist() if decode else batch.extend_prefix_lens_cpu
        rows = [self.table[at, :n] for at, n in zip(batch.req_pool_indices, lengths, strict=True)]
        tails = [row[-self.sliding_window_size :] for row in rows]
        mapping = self.pool.full_to_swa_index_mapping
        self.forward_metadata = SimpleNamespace(
            kv_indptr=bounds(rows),
            kv_indices=torch.cat(rows).long(),
            window_kv_indptr=bounds(tails),
            window_kv_indices=mapping[torch.cat(tails).long()],
        )
        self.kv_indptr = self.forward_metadata.kv_indptr
        self.window_kv_indptr = self.forward_metadata.window_kv_indptr
        self.cuda_graph_kv_indices = self.forward_metadata.kv_indices
        self.cuda_graph_window_kv_indices = self.forward_metadata.window_kv_indices


def bounds(rows: list[Tensor]) -> Tensor:
    """Return where each row of a flat list begins, and the end."""
    return torch.tensor([0, *(len(row) for row in rows)], dtype=torch.int32).cumsum(0)


@dataclasses.dataclass
class Buffers:
    """The static inputs of a graph runner for 4 rows."""

    input_ids: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(4, dtype=torch.int64))
    out_cache_loc: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(4).long())
    seq_lens: Tensor = dataclasses.field(default_factory=lambda: torch.ones(4).long())

    def populate(self, batch: Any) -> None:
        """Copy a batch into the inputs."""
        live = len(batch.input_ids)
        self.out_cache_loc.zero_()
        self.seq_lens.fill_(1)
        self.seq_lens[:live].copy_(batch.seq_lens)
        self.input_ids[:live].copy_(batch.input_ids)
        self.out_cache_loc[:live].copy_(batch.out_cache_loc)


def request(name: str, row: int, prompt: list[int], output: list[int]) -> Any:
    """Return a request as the scheduler holds it."""
    return Part(rid=name, req_pool_idx=row, origin_input_ids=prompt, output_ids=output)


def mode(name: str) -> Any:
    """Return a mode of a forward."""
    return SimpleNamespace(name=name.upper())


def decode(rows: list[int], lengths: list[int], tokens: list[int], locations: list[int]) -> Any:
    """Return a ForwardBatch that decodes: `lengths` count the new token."""
    return SimpleNamespace(
        forward_mode=mode("decode"),
        batch_size=len(rows),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(lengths),
        input_ids=torch.tensor(tokens),
        out_cache_loc=torch.tensor(locations),
        spec_info=None,
    )


def extend(rows: list[int], prefixes: list[int], lengths: list[int], locations: list[int]) -> Any:
    """Return a ForwardBatch that prefills `lengths` tokens after `prefixes` cached ones."""
    return SimpleNamespace(
        forward_mode=mode("extend"),
        batch_size=len(rows),
        req_pool_indices=torch.tensor(rows),
        extend_prefix_lens_cpu=prefixes,
        extend_seq_lens_cpu=lengths,
        extend_prefix_lens=None,
        extend_seq_lens=None,
        input_ids=torch.zeros(sum(lengths)),
        out_cache_loc=torch.tensor(locations),
        spec_info=None,
    )
