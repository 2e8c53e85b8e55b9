"""LoRA adapters: their weights, who asks for them, and the arithmetic in place of kernels."""

from collections.abc import Callable
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive.operating.adapters import with_adapters
from paritybit.drive.requests import Limits, waves
from paritybit.drive.sglang.settings import Served
from paritybit.drive.stand_ins.lora import expand, shrink, stand_in
from paritybit.drive.vllm import lora as of_vllm
from paritybit.engines.graphs import CpuGraph

shrunk = stand_in("triton", lambda x, weights, batch_info, stack_num=1: x, shrink)
expanded = stand_in("triton", lambda x, weights, batch_info, base_output=None: x, expand)
in_slices = stand_in(
    "triton", lambda x, qkv_b, batch_info, output_offset, most, base_output=None: x, expand
)
chunks_shrunk = stand_in(
    "chunked", lambda x, weights, batch_info, num_slices, split_k=None: x, shrink
)
chunks_expanded = stand_in(
    "chunked",
    lambda x, weights, batch_info, slice_offsets, max_slice_size, base_output: x,
    expand,
)

LIMITS = Limits(window=16, page=1, chunk=64, context=1536, pool=1536, rows=8)

vllm_lora: Any = of_vllm

LENGTHS, PLACES = [3, 1, 0, 4], [2, 1, 2, 0]
"""Segments of tokens, and the place of the adapter of each. Place 0 has none."""

RANKS, SCALES = [0, 2, 3], [0.0, 0.5, 2.0]


def test_requests_ask_for_every_adapter_and_for_none() -> None:
    served = Served("gpt_oss", adapters=3)
    first, again = (list(islice(served.requests(), 4)) for _ in range(2))
    assert first == again
    asked = {one.adapter for wave in first for one in wave.requests}
    assert asked == {None, 1, 2, 3}
    plain = islice(waves(0, LIMITS), 4)
    bare = list(with_adapters(0, plain, 3))
    assert bare == first


def sorted_by(slots: list[int], count: int) -> list[Any]:
    """Return what vLLM tells its kernels of tokens with these slots, of `count` and none."""
    order = sorted(range(len(slots)), key=lambda token: slots[token])
    ids = sorted(set(slots))
    counts = [slots.count(one) for one in ids]
    spare = [0] * (count + 1 - len(ids))
    starts = [0, *accumulate([*counts, *spare])]
    ids += [-1 for _ in spare]
    return list(map(torch.tensor, (slots, order, [*counts, *spare], starts, ids)))


@pytest.mark.parametrize("add", [True, False])
def test_vllms_arithmetic_is_that_of_each_tokens_adapter_also_in_a_replay(
    add: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 1, *shape, generator=generator) for shape in ((3, 6), (5, 3)))
    x, base = torch.randn(4, 6, generator=generator), torch.randn(4, 12, generator=generator)
    lists: list[Any] = sorted_by([1, -1, 0, 1], 2)
    counts: list[Any] = [torch.tensor([False]), torch.tensor([3])]
    parts: list[Callable[[], object]] = []
    recording = SimpleNamespace(open=True, end=lambda: None, begin=lambda: None, parts=parts)
    monkeypatch.setattr(CpuGraph, "recording", recording)
    within, output = torch.full((2, 4, 3), torch.nan), base.clone()

    def right(slots: list[int]) -> torch.Tensor:
        made = base.clone()
        for token, slot in enumerate(slots):
            if slot >= 0:
                one = b[slot, 0] @ (0.5 * (a[slot, 0] @ x[token]))
                old = base[token, 2:12] if add else 0
                made[token, 2:12] = old + torch.cat((one, one))
        return made

    vllm_lora.shrink(x, [a, a], within, *lists, *counts, 0.5)
    vllm_lora.expand(within, [b, b], output, *lists, *counts, offset_start=2, add_inputs=add)
    assert torch.allclose(output, right([1, -1, 0, 1]), atol=1e-5)
    for old, new in zip(lists, sorted_by([-1, 0, 0, 0], 2), strict=True):
        old.copy_(new)
    output.copy_(base)
    for part in parts:
        part()
    assert torch.allclose(output, right([-1, 0, 0, 0]), atol=1e-5)
    vllm_lora.expand(within, [b, b], output, *lists, ~counts[0], counts[1])  # No adapter.
    assert torch.allclose(output, right([-1, 0, 0, 0]), atol=1e-5)


def batch(order: list[int] | None = None) -> SimpleNamespace:
    """Return what a backend tells its kernels of a batch."""
    return SimpleNamespace(
        bs=len(LENGTHS),
        seg_lens=torch.tensor(LENGTHS),
        seg_indptr=torch.tensor([0, *LENGTHS]).cumsum(0),
        weight_indices=torch.tensor(PLACES),
        lora_ranks=torch.tensor(RANKS),
        scalings=torch.tensor(SCALES),
        permutation=None if order is None else torch.tensor(order),
    )


@pytest.mark.parametrize("order", [None, [7, 2, 5, 0, 1, 3, 6, 4]])
def test_the_arithmetic_is_that_of_each_tokens_adapter(order: list[int] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 6, generator=generator)
    a = torch.randn(3, 9, 6, generator=generator)
    b = torch.randn(3, 10, 3, generator=generator)
    base = torch.randn(8, 10, generator=generator)
    places = [place for place, n in zip(PLACES, LENGTHS, strict=True) for _ in range(n)]
    within = shrunk(x, a, batch(order), 3)
    offsets = torch.tensor([0, 4, 7, 10])
    found = in_slices(within, b, batch(order), offsets, 4, base.clone())
    for at, place in enumerate(places):
        token, rank = at if order is None else order[at], RANKS[place]
        right = base[token].clone()
        for number, (first, last) in enumerate(((0, 4), (4, 7), (7, 10))):
            mid = a[place, number * rank : (number + 1) * rank] @ x[token]
            right[first:last] += SCALES[place] * (b[place, first:last, :rank] @ mid)
        assert torch.allclose(found[token], right, atol=1e-5)
    one = expanded(shrunk(x, a[:, :3].contiguous(), batch(order)), b, batch(order))
    assert one.shape == (8, 10)
    chunks = batch(order or list(range(8)))
    chunks.num_segments, chunks.use_cuda_graph = len(LENGTHS), False
    if order is not None:  # A graph runs all segments. The last one ends before it begins.
        chunks.use_cuda_graph, chunks.seg_lens = True, None
        chunks.seg_indptr = torch.cat((chunks.seg_indptr, torch.tensor([2])))
        chunks.weight_indices = torch.cat((chunks.weight_indices, torch.tensor([2])))
    again = chunks_shrunk(x, a, chunks, num_slices=3, split_k=None)
    again = chunks_expanded(again, b, chunks, offsets, 4, base_output=base.clone())
    assert torch.equal(again, found)
    assert not one[[at if order is None else order[at] for at in (4, 5, 6, 7)]].any()
