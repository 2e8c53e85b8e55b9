"""Where a subject's forward finds and leaves recurrent states, from its own index inputs.

On CUDA by one launch each, of torch's ops on a CPU, where a tape records them.
"""

import torch
from paritybit.reference.config import SPECULATION
from paritybit.reference.kernels.late import imported_late
from paritybit.reference.state_pool import STATE_ROWS, StatePaths
from torch import Tensor

ON_CUDA = "paritybit.subjects.listing.paths"
"""The same functions for CUDA."""


def decode_paths(track_indices: Tensor) -> StatePaths:
    """Return the paths of one token of each request, of the state slots int64 [B]."""
    if track_indices.is_cuda:
        paths: StatePaths = imported_late(ON_CUDA).decode_paths(track_indices)
        return paths
    rows = track_indices * STATE_ROWS
    return StatePaths(rows, rows, torch.full_like(rows, -1), 1)


def verify_paths(track_indices: Tensor, tree_parents: Tensor) -> StatePaths:
    """Return the paths of a tree of drafts of each request, of the state slots int64 [B].

    `tree_parents` int64 [B draft_tokens] is `parents_in_tree`'s. Every node has a row of its own.
    """
    if track_indices.is_cuda:
        paths: StatePaths = imported_late(ON_CUDA).verify_paths(track_indices, tree_parents)
        return paths
    drafts = SPECULATION.draft_tokens
    place = torch.arange(tree_parents.shape[0], device=tree_parents.device)
    request, node = place // drafts, place % drafts
    rows = track_indices[request] * STATE_ROWS
    parents = torch.where(tree_parents >= 0, request * drafts + tree_parents, -1)
    return StatePaths(rows, rows + 1 + node, parents, drafts)


def extend_paths(
    track_indices: Tensor, token_requests: Tensor, positions: Tensor, longest: int
) -> StatePaths:
    """Return the paths of a batch that extends requests, of the state slots int64 [B].

    `token_requests` and `positions` are the tokens', int64 [T]; a request has `longest` of them
    at most. A token continues the one before it of its request. The first token a request ever
    has continues none.
    """
    if track_indices.is_cuda:
        paths: StatePaths = imported_late(ON_CUDA).extend_paths(
            track_indices, token_requests, positions, longest
        )
        return paths
    place = torch.arange(token_requests.shape[0], device=token_requests.device)
    # The very first token is held against the last one: it has place 0, and no parent either way.
    follows = token_requests == token_requests.roll(1)
    rows = track_indices[token_requests] * STATE_ROWS
    sources = torch.where(positions > 0, rows, -1)
    return StatePaths(sources, rows, place * follows - 1, longest)


def parents_in_tree(custom_mask: Tensor, mask_indptr: Tensor, seq_lens: Tensor) -> Tensor:
    """Return the parent of each draft token among its request's, -1 for a root, int64 [T].

    That is the last token before it that it sees. `mask_indptr` int64 [T] says where its bits
    of `custom_mask` begin, `seq_lens` [B] how many of them are of what is not drafted.
    """
    if custom_mask.is_cuda:
        found: Tensor = imported_late(ON_CUDA).parents_in_tree(custom_mask, mask_indptr, seq_lens)
        return found
    drafts = SPECULATION.draft_tokens
    place = torch.arange(mask_indptr.shape[0], device=mask_indptr.device)
    node = torch.arange(drafts, device=mask_indptr.device)
    first = mask_indptr + seq_lens[place // drafts]
    bits = (first[:, None] + node).clamp(max=custom_mask.shape[0] - 1)
    above = custom_mask[bits] & (node < (place % drafts)[:, None])
    return torch.where(above, node, -1).amax(-1)
