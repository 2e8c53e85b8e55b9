"""Small changes of tensors and outputs that tests of checks make."""

import torch
from paritybit.reference.model import Output
from torch import Tensor

_INTEGER = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def flip(values: Tensor, *place: int) -> None:
    """Flip the last bit of one element."""
    integer = _INTEGER.get(values.dtype)
    (values if integer is None else values.view(integer))[place] ^= 1


def first_of(output: Output) -> Tensor:
    """Return the first tensor of an output, one of floats."""
    return next(iter(output.values()))
