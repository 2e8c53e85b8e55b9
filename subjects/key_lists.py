"""Attention metadata: the slots that each token reads.

For graphs the lists are in static buffers. They are written before each replay and cover the padded
rows too, as in the engine's attention backends. Eager attention gets fresh lists.
"""

from collections.abc import Mapping

import torch
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import SPECULATION
from paritybit.subjects.buffers import BufferPool, Conversions, copy_together
from paritybit.subjects.listing import list_rows, list_spans
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.protocol import KeyLists, Keys
from paritybit.subjects.toggles import MemoResets, Toggles
from torch import Tensor

Lists = dict[str, Tensor]
"""Metadata by buffer name."""


class StaticLists:
    """The static buffers of one runner's metadata: name to (elements, dtype)."""

    def __init__(self, sizes: Mapping[str, tuple[int, torch.dtype]], buffers: BufferPool) -> None:
        self.buffers = {
            name: buffers.get(name, (size,), dtype, 0) for name, (size, dtype) in sizes.items()
        }
        self.conversions: Conversions = set()

    def write(self, values: Lists) -> None:
        """Copy each list to the start of its buffer."""
        self.conversions |= {
            (name, listed.dtype, self.buffers[name].dtype)
            for name, listed in values.items()
            if listed.dtype != self.buffers[name].dtype
        }
        copy_together(
            [(self.buffers[name][: listed.shape[0]], listed) for name, listed in values.items()]
        )


def row_sizes(rows: int, max_keys: int, window: int) -> dict[str, tuple[int, torch.dtype]]:
    """Return the buffers of `row_lists` for at most `rows` rows."""
    return {
        "kv_indptr": (rows + 1, torch.int32),
        "kv_indices": (rows * max_keys, torch.int64),
        "window_kv_indptr": (rows + 1, torch.int32),
        "window_kv_indices": (rows * window, torch.int64),
    }


def row_keys(lists: Mapping[str, Tensor], first: int, rows: int) -> KeyLists:
    """Return the keys of `rows` rows of `row_lists`, starting at row `first`."""
    kinds = ("kv_indptr", "kv_indices"), ("window_kv_indptr", "window_kv_indices")
    full, swa = (
        Keys(
            lists[indptr][first : first + rows],
            lists[indptr][first + 1 : first + rows + 1],
            lists[indices],
        )
        for indptr, indices in kinds
    )
    return KeyLists(full, swa)


def row_lists(
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    seq_lens_cpu: Tensor,
    window: int,
    pool: SubjectPool,
    memo_resets: MemoResets,
    shift: tuple[Tensor, Tensor] | None = None,
) -> Lists:
    """Return the key lists of rows. Row i sees `seq_lens[i]` keys, including its own.

    `req_pool_indices` int64 [rows] are rows of req_to_token. `seq_lens` [rows] are key counts, and
    `seq_lens_cpu` is their copy on the host, which determines the lengths of the lists. `shift` is
    (column, by): keys from `column` on are read `by` columns further on.
    """
    lengths = seq_lens_cpu.tolist()
    lists = list_rows(
        req_pool_indices,
        seq_lens,
        (sum(lengths), sum(min(length, window) for length in lengths)),
        window,
        pool.pool.req_to_token,
        shift,
    )
    return translated(lists, pool, memo_resets)


def draft_lists(
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    seq_lens_cpu: Tensor,
    window: int,
    pool: SubjectPool,
    memo_resets: MemoResets,
    topk: int,
) -> Lists:
    """Return `row_lists` of all forwards of a draft: [forwards, B, topk] rows, flat.

    At forward s a branch sees the request's keys and its own s + 1 drafts. The drafts of branch b
    are in the columns from seq_len + b * steps on.
    """
    requests, device = seq_lens.shape[0], seq_lens.device
    shape = (SPECULATION.forwards, requests, topk)
    drafted = torch.arange(1, SPECULATION.forwards + 1, dtype=torch.int32)[:, None, None]
    branch = torch.arange(topk, device=device).expand(shape).reshape(-1)

    def per_row(values: Tensor) -> Tensor:
        return values[None, :, None].expand(shape)

    return row_lists(
        per_row(req_pool_indices).reshape(-1),
        (per_row(seq_lens) + drafted.to(device)).reshape(-1),
        (per_row(seq_lens_cpu) + drafted).reshape(-1),
        window,
        pool,
        memo_resets,
        (per_row(seq_lens).reshape(-1), branch * SPECULATION.steps),
    )


def span_sizes(
    requests: int, tokens: int, max_keys: int, window: int
) -> dict[str, tuple[int, torch.dtype]]:
    """Return the buffers of `span_lists` for at most that many requests and tokens."""
    ends = ("key_begin", "key_end", "window_key_begin", "window_key_end")
    return {
        "kv_indices": (requests * max_keys, torch.int64),
        "window_kv_indices": (requests * (window + tokens // requests), torch.int64),
        **dict.fromkeys(ends, (tokens, torch.int32)),
    }


def span_keys(lists: Mapping[str, Tensor], tokens: int) -> KeyLists:
    """Return the keys of the first `tokens` tokens of `span_lists`."""
    return KeyLists(
        Keys(lists["key_begin"][:tokens], lists["key_end"][:tokens], lists["kv_indices"]),
        Keys(
            lists["window_key_begin"][:tokens],
            lists["window_key_end"][:tokens],
            lists["window_kv_indices"],
        ),
    )


def span_lists(
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    counts: Tensor,
    seq_lens_cpu: Tensor,
    counts_cpu: Tensor,
    tokens: int,
    window: int,
    pool: SubjectPool,
    memo_resets: MemoResets,
) -> Lists:
    """Return the lists of requests that run the last `counts` of their `seq_lens` tokens.

    The tensors are [B], on the device or (`_cpu`) on the host. `tokens` and `window` are counts.
    The tokens of each request follow those of the previous one. Tokens beyond the last request see
    no key.
    """
    lengths, ran = seq_lens_cpu.tolist(), counts_cpu.tolist()
    unseen = (
        max(length - count - window + 1, 0) for length, count in zip(lengths, ran, strict=True)
    )
    total = sum(lengths)
    lists = list_spans(
        req_pool_indices,
        seq_lens,
        counts,
        (total, total - sum(unseen)),
        tokens,
        window,
        pool.pool.req_to_token,
    )
    return translated(lists, pool, memo_resets)


def fresh_span_keys(
    batch: ForwardBatch, window: int, pool: SubjectPool, memo_resets: MemoResets
) -> KeyLists:
    """Return fresh keys of a batch that extends: one row per token, with its prefix and itself."""
    lists = span_lists(
        batch.req_pool_indices,
        batch.seq_lens,
        batch.extend_lens,
        batch.seq_lens_cpu,
        batch.extend_lens_cpu,
        batch.live_tokens,
        window,
        pool,
        memo_resets,
    )
    return span_keys(lists, batch.live_tokens)


def verify_sizes(requests: int, max_keys: int, window: int) -> dict[str, tuple[int, torch.dtype]]:
    """Return the buffers of `verify_lists` for at most `requests` requests."""
    tokens = requests * SPECULATION.draft_tokens
    ends = ("key_begin", "key_end", "window_key_begin", "window_key_end")
    return {
        "kv_indices": (requests * max_keys, torch.int64),
        "swa_page_table": (requests * page_table_width(window), torch.int32),
        "window_kv_offsets": (requests, torch.int64),
        **dict.fromkeys(ends, (tokens, torch.int32)),
        "mask_indptr": (tokens, torch.int64),
    }


def page_table_width(window: int) -> int:
    """Return the number of columns that a verify sees per request on SWA layers."""
    return window - 1 + SPECULATION.draft_tokens


def verify_keys(
    lists: Mapping[str, Tensor], tokens: int, custom_mask: Tensor, window: int
) -> KeyLists:
    """Return the keys of the first `tokens` tokens of `verify_lists`.

    A token's mask bits on SWA layers begin where its window begins. This place is in the token's
    row of the page table, which itself begins at the request's offset.
    """
    begin, end = lists["window_key_begin"][:tokens], lists["window_key_end"][:tokens]
    mask_indptr = lists["mask_indptr"][:tokens]
    page_table, offsets = lists["swa_page_table"], lists["window_kv_offsets"]
    width = page_table_width(window)
    slots, mask_start = tree_keys(page_table, offsets, begin, mask_indptr, width)
    return KeyLists(
        Keys(
            lists["key_begin"][:tokens],
            lists["key_end"][:tokens],
            lists["kv_indices"],
            mask_indptr,
        ),
        Keys(begin, end, slots, mask_start),
        custom_mask,
    )


def tree_keys(
    page_table: Tensor, offsets: Tensor, begin: Tensor, mask_indptr: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Return the slots of page tables of `width` columns, and where the tokens' mask bits begin.

    Both are int64. The other tensors are those of `verify_lists` for some tokens.
    """
    request = torch.arange(begin.shape[0], device=begin.device) // SPECULATION.draft_tokens
    skipped = begin - request * width + offsets[request]
    return page_table.to(torch.int64), mask_indptr + skipped


def verify_lists(
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    seq_lens_cpu: Tensor,
    positions: Tensor,
    window: int,
    pool: SubjectPool,
    toggles: Toggles,
) -> Lists:
    """Return the lists of B requests. Request i has `seq_lens[i]` keys and a tree of drafts.

    For full layers the lists hold a request's keys and drafts. For SWA layers they are read from a
    page table of the window: one row per request, translated to SWA slots (PR 24617). A token's
    keys are all keys of its request from the beginning of its window, and the tree's mask selects
    among them. `positions` int64 [B draft_tokens] are the tokens' positions.
    """
    table, drafts = pool.pool.req_to_token, SPECULATION.draft_tokens
    total = sum(seq_lens_cpu.tolist()) + drafts * seq_lens_cpu.shape[0]
    full = list_rows(req_pool_indices, seq_lens + drafts, (total, 0), window, table, None)
    lists = tree_lists(req_pool_indices, seq_lens, positions, window, table)
    if toggles.translate_page_table:
        page_table = translate_window(lists["swa_page_table"], pool, toggles.memo_resets)
        lists["swa_page_table"] = page_table
    return {"kv_indices": full["kv_indices"], **lists}


def tree_lists(
    req_pool_indices: Tensor, seq_lens: Tensor, positions: Tensor, window: int, table: Tensor
) -> Lists:
    """Return `verify_lists` without its full slots and without translating the page table."""
    drafts = SPECULATION.draft_tokens
    ends = seq_lens + drafts
    place = torch.arange(positions.shape[0], device=positions.device)
    request, node = place // drafts, place % drafts
    begins = torch.cumsum(ends, 0) - ends
    mask_rows = begins * drafts
    mask_indptr = mask_rows[request] + node * ends[request]
    offsets = (seq_lens - window + 1).clamp(min=0)
    width = page_table_width(window)
    columns = offsets[:, None] + torch.arange(width, device=positions.device)
    slots = table[req_pool_indices[:, None], columns.clamp(max=table.shape[1] - 1)]
    first = (positions - window + 1).clamp(min=0)
    row_start = request * width - offsets[request]
    return {
        "swa_page_table": torch.where(columns < ends[:, None], slots, 0).flatten(),
        "window_kv_offsets": offsets.to(torch.int64),
        "key_begin": begins[request].to(torch.int32),
        "key_end": (begins + ends)[request].to(torch.int32),
        "window_key_begin": (row_start + first).to(torch.int32),
        "window_key_end": (row_start + ends[request]).to(torch.int32),
        "mask_indptr": mask_indptr,
    }


def translated(lists: Lists, pool: SubjectPool, memo_resets: MemoResets) -> Lists:
    """Return the lists, with the window's lists translated to SWA slots."""
    window_kv_indices = translate_window(lists["window_kv_indices"], pool, memo_resets)
    return {**lists, "window_kv_indices": window_kv_indices}


def translate_window(
    window_kv_indices: Tensor, pool: SubjectPool, memo_resets: MemoResets
) -> Tensor:
    """Translate a window's full slots (int32) to SWA slots (int32), between PR 26152's sites."""
    if memo_resets.before_window:
        pool.invalidate_loc_cache()
    translated = pool.translate_loc_from_full_to_swa(window_kv_indices)
    if memo_resets.after_window:
        pool.invalidate_loc_cache()
    return translated
