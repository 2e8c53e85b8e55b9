"""Slots where a subject's forward reads and writes recurrent states, by its own index inputs."""

import torch
from paritybit.reference.config import DRAFT_TOKENS
from paritybit.reference.model import StatePaths
from paritybit.reference.pool import STATE_ROWS
from torch import Tensor


def decode_paths(track_indices: Tensor) -> StatePaths:
    """Return the paths of one token per request. `track_indices` int64 [B] are state slots."""
    rows = track_indices * STATE_ROWS
    return StatePaths(rows, rows, torch.full_like(rows, -1), 1)


def verify_paths(track_indices: Tensor) -> StatePaths:
    """Return the paths of DRAFT_TOKENS tokens per request, each of which has its own row.

    `track_indices` int64 [B] are state slots.
    """
    count = track_indices.shape[0] * DRAFT_TOKENS
    place = torch.arange(count, device=track_indices.device)
    request, turn = place // DRAFT_TOKENS, place % DRAFT_TOKENS
    rows = track_indices[request] * STATE_ROWS
    return StatePaths(rows, rows + 1 + turn, place * (turn > 0) - 1, DRAFT_TOKENS)


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
