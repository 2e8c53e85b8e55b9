"""Lists the slots that requests see, one request after another.

On full layers a request lists its first columns of `req_to_token`. On SWA layers it lists those
from the first column in the window of its first token. Slots are full slots, and lists are int32.

The lists are made on the host with numpy, on a GPU too. For such short lists, torch takes three
times as long.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int32]


def list_rows(
    rows: Tensor,
    seq_lens: Tensor,
    totals: tuple[int, int],
    window: int,
    table: Tensor,
    shift: tuple[Tensor, Tensor] | None,
) -> dict[str, Tensor]:
    """Return the lists of rows that run one token each and see `seq_lens` [N] keys.

    `rows` [N] are their rows of `table`. `totals` are the numbers of keys to list: full and window.
    `shift` is as in `subjects.key_lists.row_lists`. Raises IndexError if there are fewer keys, or
    if a row or column does not exist.
    """
    lengths = on_host(seq_lens)
    lists = _Lists(rows, lengths, np.minimum(lengths, window), totals, table, shift)
    return _tensors(
        seq_lens.device,
        {
            "kv_indptr": lists.indptr,
            "kv_indices": lists.slots,
            "window_kv_indptr": lists.window_indptr,
            "window_kv_indices": lists.window_slots,
        },
    )


def list_spans(
    rows: Tensor,
    seq_lens: Tensor,
    counts: Tensor,
    totals: tuple[int, int],
    tokens: int,
    window: int,
    table: Tensor,
) -> dict[str, Tensor]:
    """Return the lists of requests that run the last `counts` [N] of their `seq_lens` tokens.

    They include where the keys of each of `tokens` tokens begin and end in its request's lists. The
    other arguments are as in `list_rows`.
    """
    lengths, ran = on_host(seq_lens), on_host(counts)
    begins = lengths - ran
    starts = np.maximum(begins - window + 1, 0)
    kept = lengths - starts
    lists = _Lists(rows, lengths, kept, totals, table)
    token_indptr = indptr_of(ran)
    place = np.arange(tokens, dtype=np.int32)
    request = np.searchsorted(token_indptr[1:], place, side="right")
    live = request < len(ran)
    request = np.minimum(request, len(ran) - 1)
    column = (begins - token_indptr[:-1])[request] + place
    sees = live & (column >= 0)
    seen = column + 1
    first = np.maximum(column - window + 1, 0)
    begin = lists.indptr[request]
    window_begin = (lists.window_indptr[:-1] - starts)[request] + first
    return _tensors(
        seq_lens.device,
        {
            "kv_indices": lists.slots,
            "key_begin": begin,
            "key_end": begin + seen * sees,
            "window_kv_indices": lists.window_slots,
            "window_key_begin": window_begin,
            "window_key_end": window_begin + (seen - first) * sees,
        },
    )


def indptr_of(lengths: Ints) -> Ints:
    """Return the running sum of `lengths` [N], int32 [N + 1]. The first element is 0."""
    indptr = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, dtype=np.int32, out=indptr[1:])
    return indptr


class _Lists:
    """The slots of rows of `table`, and where each row begins, for both kinds.

    Full lists contain a row's first `lengths` columns, window lists the last `kept` of them. Both
    are computed at once, as if each row were two.
    """

    def __init__(
        self,
        rows: Tensor,
        lengths: Ints,
        kept: Ints,
        totals: tuple[int, int],
        table: Tensor,
        shift: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        count = len(lengths)
        both = np.concatenate((lengths, kept))
        indptr = indptr_of(both)
        first, end = int(indptr[count]), int(indptr[-1])
        self.indptr, self.window_indptr = indptr[: count + 1], indptr[count:] - first
        if first < totals[0] or end - first < totals[1]:
            raise IndexError(
                f"{totals} keys must be listed, but the rows have {first} and {end - first}"
            )
        before = indptr[:-1].copy()  # Place minus column.
        before[count:] += kept - lengths
        column = np.arange(end) - np.repeat(before, both)
        if shift is not None:
            since, by = (np.repeat(np.tile(on_host(values), 2), both) for values in shift)
            column += np.where(column >= since, by, 0)
        listed = np.repeat(np.tile(on_host(rows), 2), both)
        slots: Ints = on_host(table)[listed, column]
        self.slots, self.window_slots = slots[: totals[0]], slots[first : first + totals[1]]


def on_host(values: Tensor) -> Ints:
    """Return a tensor of indices as an array on the host. A copy from a device waits for it."""
    found: Ints = values.cpu().numpy()
    return found


def _tensors(device: torch.device, lists: Mapping[str, NDArray[np.integer]]) -> dict[str, Tensor]:
    """Return the lists as tensors, int32."""
    return {
        name: torch.from_numpy(values.astype(np.int32, copy=False)).to(device)
        for name, values in lists.items()
    }
