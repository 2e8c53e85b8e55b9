"""A model in pieces, cut at attention, as an engine's compiler splits it."""

from collections.abc import Callable
from dataclasses import dataclass

from paritybit.reference.config import Kind
from paritybit.reference.model import Heads, Model, TokenInputs
from paritybit.reference.ops import Ops
from torch import Tensor

Rotary = dict[Kind, Tensor]


@dataclass(frozen=True)
class PieceOutput:
    """The output of one piece of a model, for attention and for the pieces after it."""

    hidden: Tensor
    rotary: Rotary
    heads: Heads
    mixed: Tensor


@dataclass(frozen=True)
class CutModel:
    """A model cut at attention. `room` returns a tensor for the attention of a layer's heads.

    `live_tokens`, a tensor of one element, is the number of live tokens.
    """

    model: Model
    ops: Ops
    room: Callable[[int, Heads], Tensor]

    def first(self, tokens: TokenInputs) -> PieceOutput:
        """Run everything before the first attention."""
        hidden = self.model.embed(self.ops, tokens.input_ids, tokens.payload)
        rotary = self.model.rotary(self.ops, tokens.positions, tokens.mrope_positions)
        return self._before(0, hidden, rotary)

    def between(self, layer: int, left: PieceOutput, live_tokens: Tensor) -> PieceOutput:
        """Run everything between the attention of `layer` and the next one."""
        return self._before(layer + 1, self.after(layer, left, live_tokens), left.rotary)

    def after(self, layer: int, left: PieceOutput, live_tokens: Tensor) -> Tensor:
        """Run everything in a layer after its attention."""
        return self.model.after_attention(self.ops, layer, left.hidden, left.mixed, live_tokens)

    def _before(self, layer: int, hidden: Tensor, rotary: Rotary) -> PieceOutput:
        heads = self.model.before_attention(self.ops, layer, hidden, rotary)
        return PieceOutput(hidden, rotary, heads, self.room(layer, heads))
