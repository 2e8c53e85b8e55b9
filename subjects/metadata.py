"""Attention metadata: which slots each row reads, in lists that outlive the forward.

For decode the lists live in static buffers, written before each replay and covering
the padded rows too, as the engine's Triton backend does. For extend they are fresh.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference.batch import ForwardBatch
from reference.config import ModelConfig
from subjects.behaviour import Invalidation
from subjects.buffers import BufferPool
from subjects.pool import SubjectPool


@dataclass(frozen=True)
class KeyLists:
    """Per row of a forward: full slots and SWA slots of the keys it sees."""

    kv_indptr: Tensor
    kv_indices: Tensor
    window_kv_indptr: Tensor
    window_kv_indices: Tensor


class StaticMetadata:
    """The static key lists of graph decode over at most `max_bs` rows.

    kv_indptr and window_kv_indptr are int32 [max_bs + 1]; kv_indices int64
    [max_bs * max_context]; window_kv_indices int64 [max_bs * window].
    """

    def __init__(self, config: ModelConfig, max_bs: int, buffers: BufferPool) -> None:
        sizes = {
            "kv_indptr": (max_bs + 1, torch.int32),
            "kv_indices": (max_bs * config.max_context, torch.int64),
            "window_kv_indptr": (max_bs + 1, torch.int32),
            "window_kv_indices": (max_bs * config.window, torch.int64),
        }
        self.window = config.window
        self.buffers = {
            name: buffers.get(name, (size,), dtype, 0) for name, (size, dtype) in sizes.items()
        }
        self.conversions: set[tuple[str, torch.dtype, torch.dtype]] = set()

    def lists(self, bs: int) -> KeyLists:
        """Return the views that a graph of `bs` rows reads."""
        return KeyLists(
            self.buffers["kv_indptr"][: bs + 1],
            self.buffers["kv_indices"],
            self.buffers["window_kv_indptr"][: bs + 1],
            self.buffers["window_kv_indices"],
        )

    def write(
        self,
        req_pool_indices: Tensor,
        seq_lens: Tensor,
        seq_lens_cpu: Tensor,
        pool: SubjectPool,
        invalidation: Invalidation,
    ) -> None:
        """Write the lists of the rows given, padded ones included.

        All arguments are [bs]: rows of req_to_token (int64), key counts on the device
        and on the host (int32); the host copy says how many elements to gather.
        """
        starts = torch.zeros_like(seq_lens)
        slots = self._write_list(
            "kv", req_pool_indices, starts, seq_lens, int(seq_lens_cpu.sum()), pool
        )
        self._store("kv_indices", slots)
        window_kv_lens = seq_lens.clamp(max=self.window)
        window_kv_start = seq_lens - window_kv_lens
        total = int(seq_lens_cpu.clamp(max=self.window).sum())
        window_kv_indices = self._write_list(
            "window_kv", req_pool_indices, window_kv_start, window_kv_lens, total, pool
        )
        self._store(
            "window_kv_indices",
            translate_window(window_kv_indices.to(torch.int64), pool, invalidation),
        )

    def _write_list(
        self,
        name: str,
        req_pool_indices: Tensor,
        starts: Tensor,
        lengths: Tensor,
        total: int,
        pool: SubjectPool,
    ) -> Tensor:
        """Write the indptr of list `name`; return its full slots, int32 [total]."""
        indptr = self.buffers[f"{name}_indptr"][: lengths.shape[0] + 1]
        torch.cumsum(lengths, 0, dtype=torch.int32, out=indptr[1:])
        return gather_slots(req_pool_indices, starts, indptr, total, pool)

    def _store(self, name: str, values: Tensor) -> None:
        buffer = self.buffers[name]
        if values.dtype != buffer.dtype:
            self.conversions.add((name, values.dtype, buffer.dtype))
        buffer[: values.shape[0]] = values


def gather_slots(
    rows: Tensor, starts: Tensor, indptr: Tensor, total: int, pool: SubjectPool
) -> Tensor:
    """Return req_to_token[rows[i], starts[i] : starts[i] + length i] for all i, concatenated.

    `indptr` [n + 1] holds the running sum of the lengths, `total` its last value.
    """
    place = torch.arange(total, dtype=indptr.dtype, device=rows.device)
    row = torch.searchsorted(indptr[1:], place, right=True)
    column = place - indptr[row] + starts[row]
    return pool.pool.req_to_token[rows[row], column]


def translate_window(
    window_kv_indices: Tensor, pool: SubjectPool, invalidation: Invalidation
) -> Tensor:
    """Translate a window's full slots (int64) to SWA slots (int32), between PR 26152's sites."""
    if invalidation.before_window:
        pool.invalidate_loc_cache()
    translated = pool.translate_loc_from_full_to_swa(window_kv_indices)
    if invalidation.after_window:
        pool.invalidate_loc_cache()
    return translated


def extend_lists(
    batch: ForwardBatch, config: ModelConfig, pool: SubjectPool, invalidation: Invalidation
) -> KeyLists:
    """Return fresh key lists for an extend: one row per token, its prefix and itself."""
    seen = batch.positions + 1
    lengths_cpu = torch.tensor(
        [position + 1 for span in batch.spans for position in range(span.begin, span.end)]
    )
    token_counts = [span.end - span.begin for span in batch.spans]
    rows = torch.repeat_interleave(
        batch.req_pool_indices,
        torch.tensor(token_counts, device=seen.device),
        output_size=sum(token_counts),
    )

    def listed(starts: Tensor, lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
        indptr = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=seen.device)
        torch.cumsum(lengths, 0, dtype=torch.int32, out=indptr[1:])
        return indptr, gather_slots(rows, starts, indptr, total, pool).to(torch.int64)

    window_lens = seen.clamp(max=config.window)
    kv_indptr, kv_indices = listed(torch.zeros_like(seen), seen, int(lengths_cpu.sum()))
    window_kv_indptr, window_kv_indices = listed(
        seen - window_lens, window_lens, int(lengths_cpu.clamp(max=config.window).sum())
    )
    translated = translate_window(window_kv_indices, pool, invalidation)
    return KeyLists(kv_indptr, kv_indices, window_kv_indptr, translated.to(torch.int64))
