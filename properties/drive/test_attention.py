"""The arithmetic of attention over an engine's lists, against attention over each row alone."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.drive.stand_ins import attention
from paritybit.drive.stand_ins.attention import DecodeAttention, ExtendAttention, UnifiedAttention

SLOTS, HEADS, GROUPS, WIDTH, VALUES = 40, 4, 2, 8, 6
PREFIXES, QUERIES = (5, 0, 9), (3, 4, 1)


def rows() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return buffers of K and V, and the lists of rows with prefixes of different lengths."""
    chance = torch.Generator().manual_seed(0)
    k = torch.randn(SLOTS, GROUPS, WIDTH, generator=chance)
    v = torch.randn(SLOTS, GROUPS, VALUES, generator=chance)
    ends = torch.tensor([0, *PREFIXES]).cumsum(0)
    return k, v, ends, torch.randperm(SLOTS, generator=chance)[: sum(PREFIXES)]


def dense(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sinks: Tensor | None = None, cap: float = 0.0
) -> Tensor:
    """Return [T, H, width of V], head by head and query by query, in float64."""
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float64)
    for query in range(q.shape[0]):
        for head in range(q.shape[1]):
            group = head // (q.shape[1] // k.shape[1])
            scores = (k[:, group].double() @ q[query, head].double()) * q.shape[-1] ** -0.5
            if cap:
                scores = cap * torch.tanh(scores / cap)
            scores = scores.masked_fill(~seen[query], -math.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks[head].double()[None]])
            weights = torch.softmax(scores, 0)[: len(k)]
            out[query, head] = weights @ v[:, group].double()
    return out.float()


def decode(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, ends: Tensor, listed: Tensor, scale: float,
    **how: Any,
) -> None:  # fmt: skip
    lists: Any = {"k_buffer": k, "v_buffer": v, "kv_indptr": ends, "kv_indices": listed}
    DecodeAttention(q=q, o=o, sm_scale=scale, **lists, **how).run()


@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_decode_attends_to_all_that_a_row_lists(cap: float, with_sinks: bool) -> None:
    k, v, ends, listed = rows()
    q = torch.randn(3, HEADS, WIDTH, generator=torch.Generator().manual_seed(1))
    sinks = torch.linspace(-1, 1, HEADS) if with_sinks else None
    out = torch.full((3, HEADS, VALUES), math.nan)
    decode(q, k, v, out, ends, listed, WIDTH**-0.5, logit_cap=cap, sinks=sinks)
    for row in (0, 2):
        slots = listed[ends[row] : ends[row + 1]]
        right = dense(
            q[row : row + 1], k[slots], v[slots], torch.ones(1, len(slots)) > 0, sinks, cap
        )
        torch.testing.assert_close(out[row : row + 1], right)
    assert out[1].eq(0).all()  # It lists nothing.


def merged(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return attention to all keys from that to each part, by the logarithms of their weights."""
    outs, sums = (torch.stack(one) for one in zip(*parts, strict=True))
    return (outs * sums.softmax(0).nan_to_num()[..., None]).sum(0)


def test_attention_to_parts_of_the_keys_makes_up_that_to_all() -> None:
    k, v, ends, listed = rows()
    q = torch.randn(3, HEADS, WIDTH, generator=torch.Generator().manual_seed(3))

    def of(bounds: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        out, sums = torch.empty(3, HEADS, VALUES), torch.full((5, HEADS, 2), -math.inf)
        decode(q, k, v, out, bounds, slots, WIDTH**-0.5, attn_lse=sums)
        return out, sums[:3].logsumexp(-1)

    every = [listed[ends[row] : ends[row + 1]] for row in range(3)]
    halves = ([slots[rank::2] for slots in every] for rank in (0, 1))
    parts = [of(torch.tensor([0, *map(len, half)]).cumsum(0), torch.cat(half)) for half in halves]
    torch.testing.assert_close(merged(parts), of(ends, listed)[0])


def test_a_prefix_and_a_prompt_can_be_attended_to_apart() -> None:
    k, v, ends, listed = rows()
    chance, total = torch.Generator().manual_seed(4), sum(QUERIES)
    q = torch.randn(total, HEADS, WIDTH, generator=chance)
    new: Any = {
        "k_extend": torch.randn(total, GROUPS, WIDTH, generator=chance),
        "v_extend": torch.randn(total, GROUPS, VALUES, generator=chance),
    }
    none = {name: one[:0] for name, one in new.items()}
    starts = torch.tensor([0, *QUERIES]).cumsum(0)

    def of(given: Any, **how: Any) -> tuple[Tensor, Tensor]:
        out, sums = torch.empty(total, HEADS, VALUES), torch.empty(total, HEADS)
        lists: Any = {"k_buffer": k, "v_buffer": v, "kv_indptr": ends, "kv_indices": listed}
        ExtendAttention(
            q_extend=q, o_extend=out, qo_indptr=starts, lse_extend=sums, **lists, **given, **how
        ).run()
        return out, sums

    parts = [of(new, skip_prefix=True), of(none, skip_extend=True, is_causal=False)]
    torch.testing.assert_close(merged(parts), of(new)[0])


@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("as_decoding", [False, True])
def test_extend_and_unified_attention_see_what_a_mask_allows(
    window: int, tree: bool, as_decoding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unified kernel lists the new tokens too; both give what dense attention gives.

    All nodes of the tree are roots, so they have the same position.
    """
    monkeypatch.setattr(attention, "as_decoding", as_decoding)
    k, v, ends, listed = rows()
    chance = torch.Generator().manual_seed(2)
    total = sum(QUERIES)
    q = torch.randn(total, HEADS, WIDTH, generator=chance)
    new_k = torch.randn(total, GROUPS, WIDTH, generator=chance)
    new_v = torch.randn(total, GROUPS, VALUES, generator=chance)
    starts = torch.tensor([0, *QUERIES]).cumsum(0)
    masks, right, unified, lengths = [], [], [], [0]
    free = [slot for slot in range(SLOTS) if slot not in set(listed.tolist())]
    for row, (prefix, count) in enumerate(zip(PREFIXES, QUERIES, strict=True)):
        slots = listed[ends[row] : ends[row + 1]]
        mine = slice(int(starts[row]), int(starts[row]) + count)
        place = torch.arange(prefix + count)
        seen = place <= (prefix + torch.arange(count))[:, None]
        if tree:
            seen = torch.ones(count, prefix + count, dtype=torch.bool)
            seen[:, prefix:] = torch.eye(count) > 0
        masks.append(seen.flatten())
        if window > 0:
            positions = prefix + torch.arange(count) * (not (tree and as_decoding))
            seen = seen & (positions[:, None] <= place + (window - as_decoding))
        keys, values = torch.cat([k[slots], new_k[mine]]), torch.cat([v[slots], new_v[mine]])
        right.append(dense(q[mine], keys, values, seen))
        taken = torch.tensor(free[int(starts[row]) : int(starts[row]) + count])
        k[taken], v[taken] = new_k[mine], new_v[mine]
        unified += [*slots.tolist(), *taken.tolist()]
        lengths.append(len(unified))
    mask = torch.cat(masks) if tree else None
    mask_starts = torch.tensor([0, *(len(one) for one in masks)]).cumsum(0)
    given: Any = {"custom_mask": mask, "mask_indptr": mask_starts, "sliding_window_size": window}
    out, other = torch.empty(total, HEADS, VALUES), torch.empty(total, HEADS, VALUES)
    offsets = torch.zeros(3, dtype=torch.int32)
    given |= {"k_buffer": k, "v_buffer": v, "qo_indptr": starts}
    ExtendAttention(
        q_extend=q,
        k_extend=new_k,
        v_extend=new_v,
        o_extend=out,
        kv_indptr=ends,
        kv_indices=listed,
        window_kv_offsets=offsets,
        **given,
    ).run()
    torch.testing.assert_close(out, torch.cat(right))
    listing: Any = {"kv_indptr": torch.tensor(lengths), "kv_indices": torch.tensor(unified)}
    UnifiedAttention(q=q, o=other, prefix_lens=torch.tensor(PREFIXES), **listing, **given).run()
    torch.testing.assert_close(other, torch.cat(right))
