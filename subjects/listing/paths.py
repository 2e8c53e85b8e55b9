"""The paths of recurrent states, on CUDA in one launch each: see `subjects.states`.

Indices may have any width. Paths are int64. Tensors of trees are contiguous.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import torch
import triton.language as tl
from paritybit.reference.config import SPECULATION
from paritybit.reference.kernels.launch import Kernel
from paritybit.reference.state_pool import STATE_ROWS, StatePaths
from torch import Tensor

TILE = 128
"""Tokens per program."""

ROWS = tl.constexpr(STATE_ROWS)
DRAFTS = tl.constexpr(SPECULATION.draft_tokens)


@Kernel
def decode_paths_kernel(rows, parents, slots, tokens, TILE: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < tokens
    slot = tl.load(slots + place, mask=inside, other=0).to(tl.int64)
    tl.store(rows + place, slot * ROWS, mask=inside)
    tl.store(parents + place, tl.full((TILE,), -1, tl.int64), mask=inside)


@Kernel
def verify_paths_kernel(
    sources,
    targets,
    parents,
    slots,
    tree_parents,
    tokens,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < tokens
    request = place // DRAFTS
    first = request * DRAFTS
    row = tl.load(slots + request, mask=inside, other=0).to(tl.int64) * ROWS
    parent = tl.load(tree_parents + place, mask=inside, other=-1).to(tl.int64)
    tl.store(sources + place, row, mask=inside)
    tl.store(targets + place, row + 1 + (place - first), mask=inside)
    tl.store(parents + place, tl.where(parent >= 0, first + parent, -1), mask=inside)


@Kernel
def extend_paths_kernel(
    sources,
    targets,
    parents,
    slots,
    token_requests,
    positions,
    tokens,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < tokens
    request = tl.load(token_requests + place, mask=inside, other=0).to(tl.int64)
    behind = inside & (place > 0)
    before = tl.load(token_requests + place - 1, mask=behind, other=-1).to(tl.int64)
    row = tl.load(slots + request, mask=inside, other=0).to(tl.int64) * ROWS
    position = tl.load(positions + place, mask=inside, other=0)
    parent = tl.where(request == before, place - 1, -1).to(tl.int64)
    tl.store(sources + place, tl.where(position > 0, row, -1), mask=inside)
    tl.store(targets + place, row, mask=inside)
    tl.store(parents + place, parent, mask=inside)


@Kernel
def parents_kernel(
    parents,
    custom_mask,
    bits,
    mask_indptr,
    seq_lens,
    tokens,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < tokens
    request = place // DRAFTS
    own = place - request * DRAFTS
    first = tl.load(mask_indptr + place, mask=inside, other=0).to(tl.int64)
    first += tl.load(seq_lens + request, mask=inside, other=0).to(tl.int64)
    parent = tl.full((TILE,), -1, tl.int64)
    for node in range(0, DRAFTS):
        above = inside & (node < own)
        bit = tl.minimum(first + node, bits - 1)
        seen = above & tl.load(custom_mask + bit, mask=above, other=0)
        parent = tl.where(seen, node, parent)
    tl.store(parents + place, parent, mask=inside)


def decode_paths(slots: Tensor) -> StatePaths:
    """Compute `subjects.states.decode_paths` on CUDA."""
    tokens = slots.shape[0]
    rows, parents = _empty(slots, 2, tokens)
    decode_paths_kernel.launch(_grid(tokens), rows, parents, slots.contiguous(), tokens, TILE=TILE)
    return StatePaths(rows, rows, parents, 1)


def verify_paths(slots: Tensor, tree_parents: Tensor) -> StatePaths:
    """Compute `subjects.states.verify_paths` on CUDA."""
    tokens = tree_parents.shape[0]
    sources, targets, parents = _empty(slots, 3, tokens)
    verify_paths_kernel.launch(
        _grid(tokens),
        sources,
        targets,
        parents,
        slots.contiguous(),
        tree_parents,
        tokens,
        TILE=TILE,
    )
    return StatePaths(sources, targets, parents, SPECULATION.draft_tokens)


def extend_paths(
    slots: Tensor, token_requests: Tensor, positions: Tensor, longest: int
) -> StatePaths:
    """Compute `subjects.states.extend_paths` on CUDA."""
    tokens = token_requests.shape[0]
    sources, targets, parents = _empty(slots, 3, tokens)
    extend_paths_kernel.launch(
        _grid(tokens),
        sources,
        targets,
        parents,
        slots.contiguous(),
        token_requests.contiguous(),
        positions.contiguous(),
        tokens,
        TILE=TILE,
    )
    return StatePaths(sources, targets, parents, longest)


def parents_in_tree(custom_mask: Tensor, mask_indptr: Tensor, seq_lens: Tensor) -> Tensor:
    """Compute `subjects.states.parents_in_tree` on CUDA."""
    tokens = mask_indptr.shape[0]
    (parents,) = _empty(mask_indptr, 1, tokens)
    bits = custom_mask.shape[0]
    parents_kernel.launch(
        _grid(tokens), parents, custom_mask, bits, mask_indptr, seq_lens, tokens, TILE=TILE
    )
    return parents


def _grid(tokens: int) -> tuple[int, int, int]:
    return -(-tokens // TILE), 1, 1


def _empty(beside: Tensor, *shape: int) -> tuple[Tensor, ...]:
    """Return uninitialised int64 tensors on the device of another tensor."""
    return torch.empty(shape, dtype=torch.int64, device=beside.device).unbind()
