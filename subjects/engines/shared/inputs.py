"""What an engine gives our model of tokens, as our model takes it."""

import torch
from paritybit.reference.model import Model, TokenInputs
from paritybit.reference.ops import Ops
from torch import Tensor


def token_inputs(
    model: Model,
    ops: Ops,
    input_ids: Tensor,
    positions: Tensor,
    mrope_positions: Tensor,
    payload: Tensor | None = None,
) -> TokenInputs:
    """Return the inputs of T tokens, all of them live: int64 ids and positions [T].

    Without a `payload` nothing is added to their embeddings.
    """
    return TokenInputs(
        input_ids=input_ids,
        payload=no_payload(model, ops, positions) if payload is None else payload,
        positions=positions,
        mrope_positions=mrope_positions,
        live_tokens=torch.full_like(input_ids[:1], input_ids.shape[0], dtype=torch.int32),
    )


def no_payload(model: Model, ops: Ops, positions: Tensor) -> Tensor:
    """Return a payload [T, H] of zeros."""
    nothing = torch.zeros_like(positions)
    return model.payload(ops, model.embedding[nothing], nothing.bool(), nothing)
