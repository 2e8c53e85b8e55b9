"""K and V of 8 bits, with a scale for each head of a token behind its elements.

Elementwise but for the largest of a head, which no order of its elements changes: rows are
independent, and the bits are the same in both worlds.
"""

import torch
from torch import Tensor

LEVELS = 127
"""The largest absolute value of a quantised element, a whole number."""

SMALLEST_SCALE = 2.0**-60
"""The scale of a head of zeros: no element is divided by zero."""


class Quantisation:
    """What heads [..., D] are as they are stored, [..., D + 1], and back."""

    def quantised(self, heads: Tensor) -> Tensor:
        """Return heads as whole numbers up to LEVELS, and a scale behind them."""
        scale = self.scale_of(heads)
        whole = heads.float() / scale.float()
        return torch.cat([whole.round().clamp(-LEVELS, LEVELS).to(heads.dtype), scale], -1)

    def scale_of(self, heads: Tensor) -> Tensor:
        """Return the scale of each head of a token, positive, [..., 1]."""
        largest = heads.float().abs().amax(-1, keepdim=True)
        return (largest / LEVELS).clamp(min=SMALLEST_SCALE).to(heads.dtype)

    def dequantised(self, heads: Tensor) -> Tensor:
        """Return what heads with a scale behind them stand for."""
        whole, scale = heads[..., :-1].float(), heads[..., -1:].float()
        return (whole * scale).to(heads.dtype)
