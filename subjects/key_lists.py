"""Attention metadata: the slots that each token reads.

On full layers a request lists its first columns of `req_to_token`, on SWA layers those from the
first column in the window of its first token, translated to SWA slots. Each token reads a part of
its request's list. For graphs the lists are in static buffers, which are written before each replay
and cover the padded rows too. Eager attention gets fresh lists.

The lists are made on the host with numpy. For such short lists, torch takes three times as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import ModelConfig
from paritybit.subjects.buffers import BufferPool, copy_together
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.protocol import KeyLists, Keys
from paritybit.subjects.toggles import Site, Toggles
from torch import Tensor

Ints = NDArray[np.integer[Any]]

Lists = dict[str, Tensor]
"""Metadata by buffer name."""

ENDS = ("key_begin", "key_end", "window_key_begin", "window_key_end")
"""Where each token's part of its request's lists begins and ends."""


class StaticLists:
    """The static buffers of one runner's metadata: name to (elements, dtype)."""

    def __init__(self, sizes: Mapping[str, tuple[int, torch.dtype]], buffers: BufferPool) -> None:
        self.buffers = {
            name: buffers.get(name, (size,), dtype, 0) for name, (size, dtype) in sizes.items()
        }

    def write(self, values: Lists) -> None:
        """Copy each list to the start of its buffer."""
        copy_together(
            [(self.buffers[name][: listed.shape[0]], listed) for name, listed in values.items()]
        )


def list_sizes(lists: int, tokens: int, config: ModelConfig) -> dict[str, tuple[int, torch.dtype]]:
    """Return the buffers for a number of lists that as many or more tokens read."""
    window = config.window - 1 + tokens // lists
    return {
        "kv_indices": (lists * config.max_context, torch.int64),
        "window_kv_indices": (lists * window, torch.int64),
        **dict.fromkeys(ENDS, (tokens, torch.int32)),
    }


@dataclass(frozen=True)
class Queries:
    """Requests, each of which runs the last `counts` of its `seq_lens` tokens.

    - `rows`: their rows of `req_to_token`, int64 [N].
    - `seq_lens`, `seq_lens_cpu`: how many keys each lists, including its tokens, [N]. The copy on
      the host determines the lengths of the lists.
    - `counts`, `counts_cpu`: one number, or [N].
    - `tokens`: the tokens of the forward. Those of each request follow those of the previous one.
      Tokens beyond the last request see no key.
    """

    rows: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor
    tokens: int
    counts: Tensor | int = 1
    counts_cpu: Tensor | int = 1


def list_keys(queries: Queries, window: int, table: Tensor) -> Lists:
    """Return the lists of requests, as full slots of `table`, and each token's part of them.

    Raises IndexError if there are fewer keys than the host counts, or if a row or a column does
    not exist.
    """
    lengths, counts = on_host(queries.seq_lens), on_host(queries.counts)
    begins = lengths - counts
    starts = np.maximum(begins - window + 1, 0)
    full, windows = running_sum(lengths), running_sum(lengths - starts)
    known, known_counts = on_host(queries.seq_lens_cpu), on_host(queries.counts_cpu)
    unseen = np.maximum(known - known_counts - window + 1, 0)
    lists = {
        "kv_indices": _slots(queries, table, np.zeros_like(starts), full, known.sum()),
        "window_kv_indices": _slots(queries, table, starts, windows, (known - unseen).sum()),
    }
    first_token = running_sum(np.broadcast_to(counts, lengths.shape))
    place = np.arange(queries.tokens)
    request = np.searchsorted(first_token[1:], place, side="right")
    live = request < len(lengths)
    request = np.minimum(request, len(lengths) - 1)
    column = (begins - first_token[:-1])[request] + place
    window_start = (windows[:-1] - starts)[request]
    seen = np.where(live, np.maximum(column + 1, 0), 0)
    first = np.maximum(column - window + 1, 0)
    ends = full[request] + seen, window_start + np.maximum(seen, first)
    parts = full[request], ends[0], window_start + first, ends[1]
    lists |= dict(zip(ENDS, parts, strict=True))
    return {
        name: torch.from_numpy(values.astype(np.int32, copy=False)).to(table.device)
        for name, values in lists.items()
    }


def keys_of(lists: Mapping[str, Tensor], first: int, tokens: int) -> KeyLists:
    """Return the keys of `tokens` tokens from token `first` on."""
    part = slice(first, first + tokens)
    begin, end, window_begin, window_end = (lists[name][part] for name in ENDS)
    return KeyLists(
        Keys(begin, end, lists["kv_indices"]),
        Keys(window_begin, window_end, lists["window_kv_indices"]),
    )


def translated(lists: Lists, pool: SubjectPool, toggles: Toggles) -> Lists:
    """Return lists whose window is translated to SWA slots, between PR 26152's sites."""
    if Site.BEFORE_WINDOW in toggles.sites:
        pool.invalidate_loc_cache()
    slots = pool.translate_loc_from_full_to_swa(lists["window_kv_indices"])
    if Site.AFTER_WINDOW in toggles.sites:
        pool.invalidate_loc_cache()
    return {**lists, "window_kv_indices": slots}


def fresh_keys(batch: ForwardBatch, window: int, pool: SubjectPool, toggles: Toggles) -> KeyLists:
    """Return fresh keys of a batch that extends: those of each token's prefix, and its own."""
    queries = Queries(
        batch.req_pool_indices,
        batch.seq_lens,
        batch.seq_lens_cpu,
        batch.live_tokens,
        batch.extend_lens,
        batch.extend_lens_cpu,
    )
    lists = list_keys(queries, window, pool.pool.req_to_token)
    return keys_of(translated(lists, pool, toggles), 0, batch.live_tokens)


def running_sum(lengths: Ints) -> Ints:
    """Return the sum of the lengths before each one, [N + 1]. The last element is their sum."""
    return np.concatenate([[0], np.cumsum(lengths)])


def on_host(values: Tensor | int) -> Ints:
    """Return indices as an array on the host. A copy from a device waits for it."""
    if isinstance(values, int):
        return np.array(values)
    found: Ints = values.cpu().numpy()
    return found


def _slots(queries: Queries, table: Tensor, starts: Ints, bounds: Ints, count: int) -> Ints:
    """Return the first `count` slots of lists that begin at columns `starts`.

    List i has bounds[i + 1] - bounds[i] columns.
    """
    if bounds[-1] < count:
        raise IndexError(f"{count} keys must be listed, but the rows have {bounds[-1]}")
    lengths = np.diff(bounds)
    # The places in the joined lists, counted from each list's first column.
    column = np.arange(bounds[-1]) - np.repeat(bounds[:-1] - starts, lengths)
    slots: Ints = on_host(table)[np.repeat(on_host(queries.rows), lengths), column]
    return slots[:count]
