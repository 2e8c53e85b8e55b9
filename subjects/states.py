"""Slots where a subject's forward reads and writes recurrent states, by its own index inputs."""

import torch
from paritybit.reference.config import DRAFT_TOKENS
from paritybit.reference.model import StatePaths
from paritybit.reference.pool import STATE_ROWS
from torch import Tensor


def decode_paths(track_indices: Tensor) -> StatePaths:
    """Return the paths of one token per request. `track_indices` int64 [B] are state slots."""
    rows = track_indices * STATE_ROWS
    return StatePaths(rows, rows, torch.zeros_like(rows, dtype=torch.bool), 1)


def verify_paths(track_indices: Tensor) -> StatePaths:
    """Return the paths of DRAFT_TOKENS tokens per request, each of which has its own row.

    `track_indices` int64 [B] are state slots.
    """
    count = track_indices.shape[0] * DRAFT_TOKENS
    place = torch.arange(count, device=track_indices.device)
    request, turn = place // DRAFT_TOKENS, place % DRAFT_TOKENS
    rows = track_indices[request] * STATE_ROWS
    return StatePaths(rows, rows + 1 + turn, turn > 0, DRAFT_TOKENS)


def extend_paths(
    track_indices: Tensor, token_requests: Tensor, positions: Tensor, longest: int
) -> StatePaths:
    """Return the paths of a batch that extends requests.

    `track_indices` int64 [B] are state slots. `token_requests` and `positions`, int64 [T], give the
    request and the position of each token. A request has at most `longest` tokens. Each token
    continues the previous token of its request. A request's very first token continues nothing.
    """
    follows = token_requests == token_requests.roll(1)
    follows[0] = False  # It was compared with the last token.
    rows = track_indices[token_requests] * STATE_ROWS
    sources = torch.where(positions > 0, rows, -1)
    return StatePaths(sources, rows, follows, longest)
