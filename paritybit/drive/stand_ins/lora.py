"""LoRA in torch, over the segments that the kernels of the backends `triton` and `csgmv` get.

A segment is a run of tokens with one adapter. A recording graph keeps the number of segments, like
the grid of a kernel. A replay reads everything else again.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from paritybit.engines.graphs import whole

LISTS = ("seg_lens", "seg_indptr", "weight_indices", "lora_ranks", "scalings", "permutation")


Lists = tuple[int, tuple[Tensor | None, ...]]


def lists_of(batch_info: Any) -> Lists:
    """Return the number of segments, and their lists."""
    return batch_info.bs, tuple(getattr(batch_info, name, None) for name in LISTS)


def chunks_of(batch_info: Any) -> Lists:
    """Return the number of segments, and their lists without the lengths: starts imply them.

    A graph runs all segments that its inputs have room for.
    """
    _, lists = lists_of(batch_info)
    most, number = len(batch_info.weight_indices), batch_info.num_segments
    return most if batch_info.use_cuda_graph else number, (None, *lists[1:])


def segments(lists: Lists) -> Iterator[tuple[int, int, float, Tensor]]:
    """Yield each segment with an adapter: its index, rank, scale, and the rows of its tokens."""
    count, (lengths, starts, places, ranks, scales, order) = lists
    assert starts is not None
    if lengths is None:
        lengths = starts.diff().clamp(min=0)
    assert places is not None
    assert ranks is not None
    assert scales is not None
    for segment in range(count):
        place, length = int(places[segment]), int(lengths[segment])
        rank = int(ranks[place])
        if rank and length:
            rows = torch.arange(length) + int(starts[segment])
            rows = rows if order is None else order[rows].long()
            yield place, rank, float(scales[place]), rows


def shrunk(x: Tensor, weights: Tensor, batch_info: Any, stack_num: int = 1) -> Tensor:
    """Return the products of the tokens and the A matrices of their adapters."""
    return whole(shrink, returns=True)(x, weights, lists_of(batch_info), stack_num)


def expanded(
    x: Tensor, weights: Tensor, batch_info: Any, base_output: Tensor | None = None
) -> Tensor:
    """Add the products of the tokens and the B matrices of their adapters to an output."""
    return whole(expand, returns=True)(x, weights, lists_of(batch_info), None, base_output)


def expanded_in_slices(
    x: Tensor,
    qkv_lora_b: Tensor,
    batch_info: Any,
    output_offset: Tensor,
    max_qkv_out_dim: int,
    base_output: Tensor | None = None,
    n_slices: int = 3,
) -> Tensor:
    """Like `expanded`, for the concatenated matrices of several projections."""
    del max_qkv_out_dim, n_slices
    return whole(expand, returns=True)(
        x, qkv_lora_b, lists_of(batch_info), output_offset, base_output
    )


def chunks_shrunk(x: Tensor, weights: Tensor, batch_info: Any, num_slices: int, **_: Any) -> Tensor:
    """Like `shrunk`, for segments of a limited length."""
    return whole(shrink, returns=True)(x, weights, chunks_of(batch_info), num_slices)


def chunks_expanded(
    x: Tensor,
    weights: Tensor,
    batch_info: Any,
    slice_offsets: Tensor,
    base_output: Tensor | None,
    **_: Any,
) -> Tensor:
    """Like `expanded_in_slices`, for segments of a limited length."""
    lists = chunks_of(batch_info)
    return whole(expand, returns=True)(x, weights, lists, slice_offsets, base_output)


ARITHMETIC: Mapping[str, Mapping[str, Callable[..., Tensor]]] = {
    "triton": {
        "sgemm_lora_a_fwd": shrunk,
        "sgemm_lora_b_fwd": expanded,
        "qkv_lora_b_fwd": expanded_in_slices,
    },
    "chunked": {
        "chunked_sgmv_lora_shrink_forward": chunks_shrunk,
        "chunked_sgmv_lora_expand_forward": chunks_expanded,
    },
}
"""What stands in for the kernels of each backend."""


def shrink(x: Tensor, weights: Tensor, lists: Lists, stacked: int) -> Tensor:
    """Multiply the tokens of each segment by its adapter's A matrices."""
    output = torch.zeros(len(x), weights.shape[-2], dtype=x.dtype)
    for place, rank, _, rows in segments(lists):
        width = rank * stacked
        output[rows, :width] = x[rows] @ weights[place, :width].T
    return output


def expand(
    x: Tensor,
    weights: Tensor,
    lists: Lists,
    offsets: Tensor | None,
    base: Tensor | None,
) -> Tensor:
    """Multiply the tokens of each segment by its adapter's B matrices, and add them to `base`.

    `offsets` has the start of each projection's matrix. None means a single matrix.
    """
    bounds: list[int] = [0, weights.shape[-2]] if offsets is None else offsets.tolist()
    output = torch.zeros(len(x), weights.shape[-2], dtype=x.dtype) if base is None else base
    for place, rank, scale, rows in segments(lists):
        for number, (first, last) in enumerate(pairwise(bounds)):
            read = x[rows, number * rank : (number + 1) * rank]
            output[rows, first:last] += scale * (read @ weights[place, first:last, :rank].T)
    return output
