"""The key lists of a forward in one launch, instead of a dozen torch ops.

Rows are listed at the running sum of their lengths, as in the engine's kernel
(`create_flashinfer_kv_indices_triton`). One launch makes full and window lists.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import torch
import triton.language as tl
from paritybit.reference.kernels.launch import Kernel, jit
from torch import Tensor

TILE = 512
"""Requests, keys or tokens per step of a program."""

NO_SLOT = tl.constexpr(2**31 - 1)
"""A slot number beyond any pool."""

ALL = tl.constexpr(2**30)
"""A number of keys beyond any request."""

NOWHERE = tl.constexpr(2**59)
"""An element index so large that it is an invalid address in any tensor."""

KINDS = 2
"""Full lists and window lists."""


@jit
def _before(
    request,
    windowed,
    seq_lens,
    counts,
    window,
    SPANS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Return the number of slots listed, and of tokens run, for all requests before `request`."""
    slots = tl.full((), 0, tl.int32)
    tokens = tl.full((), 0, tl.int32)
    start = 0
    while start < request:
        other = start + tl.arange(0, TILE)
        before = other < request
        length = tl.load(seq_lens + other, mask=before, other=0).to(tl.int32)
        if SPANS:
            count = tl.load(counts + other, mask=before, other=0).to(tl.int32)
            tokens += tl.sum(count, 0)
            length -= tl.where(windowed, tl.maximum(length - count - window + 1, 0), 0)
        else:
            length = tl.where(windowed, tl.minimum(length, window), length)
        slots += tl.sum(length, 0)
        start += TILE
    return slots, tokens


@jit
def _list_slots(
    target,
    source,
    begin,
    end,
    until,
    first,
    since,
    by,
    SHIFTED: tl.constexpr,
    TILE: tl.constexpr,
):
    """List a row's slots from column `first` on, at places from `begin` to `until`.

    Keys exist only up to `end`. If the host counts more, the places beyond get NO_SLOT, and their
    translation fails.
    """
    place = begin
    while place < until:
        turn = place + tl.arange(0, TILE)
        column = turn - begin + first
        if SHIFTED:
            column += tl.where(column >= tl.load(since).to(tl.int32), tl.load(by).to(tl.int32), 0)
        slot = tl.load(source + column, mask=turn < tl.minimum(end, until), other=NO_SLOT)
        tl.store(target + turn, slot, mask=turn < until)
        place += TILE


@jit
def _list_tokens(
    target,
    tokens,
    token,
    ran,
    until,
    position,
    origin,
    back,
    TILE: tl.constexpr,
):
    """List where the keys of each token from `token` on begin and end. The first is at `position`.

    Column 0 of the request has place `origin`, even if the list does not contain it. A token sees
    `back` keys before its own.
    """
    place = token
    while place < until:
        turn = place + tl.arange(0, TILE)
        column = position + turn - token
        seen = tl.where(turn < token + ran, tl.maximum(column + 1, 0), 0)
        unseen = tl.maximum(column - back, 0)
        tl.store(target + turn, origin + unseen, mask=turn < until)
        end = origin + unseen + tl.maximum(seen - unseen, 0)
        tl.store(target + tokens + turn, end, mask=turn < until)
        place += TILE


@Kernel
def key_lists_kernel(
    indptr,
    ends,
    slots,
    rows,
    seq_lens,
    counts,
    since,
    by,
    table,
    width,
    window,
    requests,
    tokens,
    full_total,
    window_total,
    SPANS: tl.constexpr,
    SHIFTED: tl.constexpr,
    TILE: tl.constexpr,
):
    request = tl.program_id(0)
    windowed = tl.program_id(1) != 0
    begin, token = _before(request, windowed, seq_lens, counts, window, SPANS, TILE)
    ran = 1
    length = tl.load(seq_lens + request).to(tl.int32)
    if SPANS:
        ran = tl.load(counts + request).to(tl.int32)
    first = tl.where(windowed, tl.maximum(length - ran - window + 1, 0), 0)
    end = begin + length - first
    own = indptr + tl.where(windowed, requests + 1, 0) + request
    tl.store(own, begin)
    tl.store(own + 1, end)
    last = request == requests - 1

    total = tl.where(windowed, window_total, full_total)
    until = tl.where(last, total, tl.minimum(end, total))
    _list_slots(
        slots + tl.where(windowed, full_total, 0),
        table + tl.load(rows + request).to(tl.int64) * width,
        begin,
        end,
        until,
        first,
        since + request,
        by + request,
        SHIFTED,
        TILE,
    )
    if SPANS:
        target = ends + tl.where(windowed, 2 * tokens, 0)
        # Tokens beyond all requests see no key.
        until = tl.where(last, tokens, tl.minimum(token + ran, tokens))
        back = tl.where(windowed, window - 1, ALL)
        _list_tokens(target, tokens, token, ran, until, length - ran, begin - first, back, TILE)


@Kernel
def translate_kernel(
    translated,
    mapping,
    size,
    loc,
    count,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < count
    slot = tl.load(loc + place, mask=inside, other=0).to(tl.int64)
    slot += tl.where(slot < 0, size, 0)
    # An invalid slot fails, as an index beyond a tensor does.
    slot = tl.where((slot >= 0) & (slot < size), slot, NOWHERE)
    found = tl.load(mapping + slot, mask=inside, other=0)
    tl.store(translated + place, found.to(tl.int32), mask=inside)


def translate(mapping: Tensor, loc: Tensor) -> Tensor:
    """Return the elements `loc` of `mapping` [N] as int32, on CUDA. -1 is the last element."""
    translated = loc.new_empty(loc.shape, dtype=torch.int32)
    count = loc.numel()
    translate_kernel.launch(
        (-(-count // TILE), 1, 1),
        translated,
        mapping,
        mapping.shape[0],
        loc.contiguous(),
        count,
        TILE=TILE,
    )
    return translated


def list_rows(
    rows: Tensor,
    seq_lens: Tensor,
    totals: tuple[int, int],
    window: int,
    table: Tensor,
    shift: tuple[Tensor, Tensor] | None,
) -> dict[str, Tensor]:
    """Compute `subjects.key_lists.list_rows` on CUDA."""
    requests = rows.shape[0]
    sizes = [requests + 1, requests + 1, *totals]
    memory = torch.empty(sum(sizes), dtype=torch.int32, device=rows.device)
    indptr, window_indptr, slots, window_slots = memory.split_with_sizes(sizes)
    since, by = shift or (rows, rows)  # The kernel takes both but does not read them.
    key_lists_kernel.launch(
        (requests, KINDS, 1),
        indptr,
        indptr,
        slots,
        rows.contiguous(),
        seq_lens.contiguous(),
        seq_lens,
        since.contiguous(),
        by.contiguous(),
        table,
        table.stride(0),
        window,
        requests,
        0,
        *totals,
        SPANS=False,
        SHIFTED=shift is not None,
        TILE=TILE,
    )
    return {
        "kv_indptr": indptr,
        "kv_indices": slots,
        "window_kv_indptr": window_indptr,
        "window_kv_indices": window_slots,
    }


def list_spans(
    rows: Tensor,
    seq_lens: Tensor,
    counts: Tensor,
    totals: tuple[int, int],
    tokens: int,
    window: int,
    table: Tensor,
) -> dict[str, Tensor]:
    """Compute `subjects.key_lists.list_spans` on CUDA."""
    requests = rows.shape[0]
    sizes = [KINDS * (requests + 1), tokens, tokens, tokens, tokens, *totals]
    memory = torch.empty(sum(sizes), dtype=torch.int32, device=rows.device)
    indptr, *ends, slots, window_slots = memory.split_with_sizes(sizes)
    key_lists_kernel.launch(
        (requests, KINDS, 1),
        indptr,
        ends[0],
        slots,
        rows.contiguous(),
        seq_lens.contiguous(),
        counts.contiguous(),
        rows,  # Read only if SHIFTED.
        rows,
        table,
        table.stride(0),
        window,
        requests,
        tokens,
        *totals,
        SPANS=True,
        SHIFTED=False,
        TILE=TILE,
    )
    names = "key_begin", "key_end", "window_key_begin", "window_key_end"
    lists = {"kv_indices": slots, "window_kv_indices": window_slots}
    return {**lists, **dict(zip(names, ends, strict=True))}
