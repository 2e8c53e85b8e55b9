"""Quantises K and V to 8 bits, with a scale per token and head that follows its elements.

Each row is computed independently, and the largest element of a head does not depend on the order
of elements. Both runs therefore get the same bits.
"""

import torch
from torch import Tensor

LEVELS = 127
"""The largest absolute value of a quantised element, a whole number."""

SMALLEST_SCALE = 2.0**-60
"""The scale of a head of zeros. It avoids a division by zero."""


class Quantisation:
    """Converts heads [..., D] to their stored form [..., D + 1], and back."""

    def quantised(self, heads: Tensor) -> Tensor:
        """Return heads as whole numbers up to LEVELS, followed by a scale."""
        scale = self.scale_of(heads)
        whole = heads.float() / scale.float()
        return torch.cat([whole.round().clamp(-LEVELS, LEVELS).to(heads.dtype), scale], -1)

    def scale_of(self, heads: Tensor) -> Tensor:
        """Return the scale of each head of a token, positive, [..., 1]."""
        largest = heads.float().abs().amax(-1, keepdim=True)
        return (largest / LEVELS).clamp(min=SMALLEST_SCALE).to(heads.dtype)

    def dequantised(self, heads: Tensor) -> Tensor:
        """Return the values of quantised heads."""
        whole, scale = heads[..., :-1].float(), heads[..., -1:].float()
        return (whole * scale).to(heads.dtype)
