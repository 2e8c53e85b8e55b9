"""Slots where a subject's forward reads and writes recurrent states, by its own index inputs."""

import torch
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import StatePaths
from paritybit.reference.pool import STATE_ROWS
from torch import Tensor


def decode_paths(track_indices: Tensor) -> StatePaths:
    """Return the paths of one token per request. `track_indices` int64 [B] are state slots."""
    rows = track_indices * STATE_ROWS
    return StatePaths(rows, rows, torch.full_like(rows, -1), 1)


def verify_paths(track_indices: Tensor, tree_parents: Tensor) -> StatePaths:
    """Return the paths of a tree of drafts per request. `track_indices` int64 [B] are state slots.

    `tree_parents` int64 [B draft_tokens] is the result of `parents_in_tree`. Every node has its own
    row.
    """
    drafts = SPECULATION.draft_tokens
    place = torch.arange(tree_parents.shape[0], device=tree_parents.device)
    request, node = place // drafts, place % drafts
    rows = track_indices[request] * STATE_ROWS
    parents = torch.where(tree_parents >= 0, request * drafts + tree_parents, -1)
    return StatePaths(rows, rows + 1 + node, parents, drafts)


def extend_paths(
    track_indices: Tensor, token_requests: Tensor, positions: Tensor, longest: int
) -> StatePaths:
    """Return the paths of a batch that extends requests.

    `track_indices` int64 [B] are state slots. `token_requests` and `positions`, int64 [T], give the
    request and the position of each token. A request has at most `longest` tokens. Each token
    continues the previous token of its request. A request's very first token continues nothing.
    """
    place = torch.arange(token_requests.shape[0], device=token_requests.device)
    # `roll` compares token 0 with the last token. Its place is 0, so it gets no parent either way.
    follows = token_requests == token_requests.roll(1)
    rows = track_indices[token_requests] * STATE_ROWS
    sources = torch.where(positions > 0, rows, -1)
    return StatePaths(sources, rows, place * follows - 1, longest)


def parents_in_tree(custom_mask: Tensor, mask_indptr: Tensor, seq_lens: Tensor) -> Tensor:
    """Return each draft token's parent in its request's tree, int64 [T]; -1 for a root.

    The parent is the last preceding node that the token sees. `mask_indptr` int64 [T] is where each
    token's bits of `custom_mask` begin. The first `seq_lens` [B] of these bits are for keys that
    are not drafts.
    """
    drafts = SPECULATION.draft_tokens
    place = torch.arange(mask_indptr.shape[0], device=mask_indptr.device)
    node = torch.arange(drafts, device=mask_indptr.device)
    first = mask_indptr + seq_lens[place // drafts]
    bits = (first[:, None] + node).clamp(max=custom_mask.shape[0] - 1)
    above = custom_mask[bits] & (node < (place % drafts)[:, None])
    return torch.where(above, node, -1).amax(-1)
