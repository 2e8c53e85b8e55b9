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

    `tree_parents` int64 [B draft_tokens] are the parents in each request's tree, -1 for a root.
    Every node has its own row.
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
