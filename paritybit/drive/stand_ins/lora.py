"""LoRA in torch, over the segments that the kernels of the backends `triton` and `csgmv` get.

A segment is a run of tokens with one adapter. A recording graph keeps the number of segments, like
the grid of a kernel. A replay reads everything else again.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from paritybit.engines.graphs import whole

LISTS = ("seg_lens", "seg_indptr", "weight_indices", "lora_ranks", "scalings", "permutation")

Lists = tuple[int, tuple[Any, ...]]


def lists_of(batch_info: Any) -> Lists:
    """Return the number of segments, and their lists."""
    return batch_info.bs, tuple(getattr(batch_info, name, None) for name in LISTS)


def chunks_of(batch_info: Any) -> Lists:
    """Return the number of segments, and their lists without the lengths: starts imply them.

    A graph runs all segments that its inputs have room for.
    """
    most, number = len(batch_info.weight_indices), batch_info.num_segments
    lists = lists_of(batch_info)[1]
    return most if batch_info.use_cuda_graph else number, (None, *lists[1:])


def segments(lists: Lists) -> Iterator[tuple[int, int, float, Tensor]]:
    """Yield each segment with an adapter: its index, rank, scale, and the rows of its tokens."""
    count, (lengths, starts, places, ranks, scales, order) = lists
    if lengths is None:
        lengths = starts.diff().clamp(min=0)
    for segment in range(count):
        place, length = int(places[segment]), int(lengths[segment])
        rank = int(ranks[place])
        if rank and length:
            rows = torch.arange(length) + int(starts[segment])
            rows = rows if order is None else order[rows].long()
            yield place, rank, float(scales[place]), rows


def shrink(
    x: Tensor, weights: Tensor, lists: Lists, stack_num: int = 1, num_slices: int = 1
) -> Tensor:
    """Multiply the tokens of each segment by its adapter's A matrices, of which there are some."""
    output = torch.zeros(len(x), weights.shape[-2], dtype=x.dtype)
    for place, rank, _, rows in segments(lists):
        width = rank * max(stack_num, num_slices)
        output[rows, :width] = x[rows] @ weights[place, :width].T
    return output


def expand(
    x: Tensor,
    weights: Tensor,
    lists: Lists,
    base_output: Tensor | None = None,
    output_offset: Tensor | None = None,
    slice_offsets: Tensor | None = None,
) -> Tensor:
    """Multiply the tokens of each segment by its adapter's B matrices, and add them to an output.

    Offsets are the starts of each projection's matrix. Without any, there is a single matrix.
    """
    offsets = output_offset if slice_offsets is None else slice_offsets
    bounds: list[int] = [0, weights.shape[-2]] if offsets is None else offsets.tolist()
    output = base_output
    if output is None:
        output = torch.zeros(len(x), weights.shape[-2], dtype=x.dtype)
    for place, rank, scale, rows in segments(lists):
        for number, (first, last) in enumerate(pairwise(bounds)):
            read = x[rows, number * rank : (number + 1) * rank]
            output[rows, first:last] += scale * (read @ weights[place, first:last, :rank].T)
    return output


KERNELS: Mapping[str, Mapping[str, Callable[..., Tensor]]] = {
    "triton": {"sgemm_lora_a_fwd": shrink, "sgemm_lora_b_fwd": expand, "qkv_lora_b_fwd": expand},
    "chunked": {
        "chunked_sgmv_lora_shrink_forward": shrink,
        "chunked_sgmv_lora_expand_forward": expand,
    },
}
"""What stands in for the kernels of each backend."""


def stand_in(backend: str, kernel: Callable[..., Tensor], arithmetic: Callable[..., Tensor]) -> Any:
    """Return a function with the signature of a kernel: tokens, weights, segments, and more."""
    lists = chunks_of if backend == "chunked" else lists_of
    signature, known = inspect.signature(kernel), inspect.signature(arithmetic).parameters

    def called(*arguments: Any, **named: Any) -> Tensor:
        given = signature.bind(*arguments, **named).arguments
        x, weights, batch_info = list(given.values())[:3]
        more = {name: value for name, value in given.items() if name in [*known][3:]}
        return whole(arithmetic, returns=True)(x, weights, lists(batch_info), **more)

    return called
