"""A model in pieces: cut at attention, and a stand-in for an engine's compiler.

An engine's compiler splits a forward at the engine's attention call. Here that call splits the
forward while it runs: a graph ends, the call runs, and the next graph begins. A replay runs the
graphs and repeats the calls, which find the current forward by themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
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

    All tokens of a piece are live unless `live_tokens` gives their number.
    """

    model: Model
    ops: Ops
    room: Callable[[int, Heads], Tensor]

    def first(self, tokens: TokenInputs) -> PieceOutput:
        """Run everything before the first attention."""
        hidden = self.model.embed(self.ops, tokens.input_ids, tokens.payload)
        rotary = self.model.rotary(self.ops, tokens.positions, tokens.mrope_positions)
        return self._before(0, hidden, rotary)

    def between(
        self, layer: int, left: PieceOutput, live_tokens: Tensor | None = None
    ) -> PieceOutput:
        """Run everything between the attention of `layer` and the next one."""
        return self._before(layer + 1, self.after(layer, left, live_tokens), left.rotary)

    def after(self, layer: int, left: PieceOutput, live_tokens: Tensor | None = None) -> Tensor:
        """Run everything in a layer after its attention."""
        if live_tokens is None:
            every = len(left.hidden)
            live_tokens = torch.full_like(left.hidden[:1, 0], every, dtype=torch.int32)
        return self.model.after_attention(self.ops, layer, left.hidden, left.mixed, live_tokens)

    def _before(self, layer: int, hidden: Tensor, rotary: Rotary) -> PieceOutput:
        heads = self.model.before_attention(self.ops, layer, hidden, rotary)
        return PieceOutput(hidden, rotary, heads, self.room(layer, heads))


class Pieces:
    """A captured forward: its graphs, and the calls between them."""

    recording: "Pieces | None" = None

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.graphs: list[Any] = []
        self.calls: list[Callable[[], Any]] = []
        self.output: Any = None

    def capture(self, forward: Callable[[], Any]) -> None:
        """Capture a forward. A replay writes to the same output."""
        Pieces.recording = self
        self._begin()
        try:
            self.output = forward()
        finally:
            self.graphs[-1].capture_end()
            Pieces.recording = None

    def split(self, call: Callable[[], Any]) -> Any:
        """Run a call between two graphs, now and at every replay."""
        self.graphs[-1].capture_end()
        value = call()
        self.calls.append(call)
        self._begin()
        return value

    def replay(self) -> Any:
        """Run the graphs and the calls between them. Return the forward's output."""
        for graph, call in zip(self.graphs, [*self.calls, None], strict=True):
            graph.replay()
            if call is not None:
                call()
        return self.output

    def _begin(self) -> None:
        self.graphs.append(torch.cuda.CUDAGraph())
        self.graphs[-1].capture_begin(pool=self.pool)


def splitting(attention: Callable[..., None]) -> Callable[..., None]:
    """Wrap the engine's attention so that each call splits the forward being captured."""

    @wraps(attention)
    def called(*arguments: Any, **named: Any) -> None:
        if Pieces.recording is None:
            attention(*arguments, **named)
        else:
            Pieces.recording.split(partial(attention, *arguments, **named))

    return called


def installed(
    in_graphs: Callable[[], bool], warms_up: Callable[[], bool]
) -> Callable[..., torch.nn.Module]:
    """Return a stand-in for the engine's function that compiles a module.

    `in_graphs` says whether a forward runs by graphs, and `warms_up` whether it compiles without a
    capture. As in the engine, the first forward of a size warms up, the second one is captured, and
    all others replay it.
    """

    def install(module: torch.nn.Module, *, graph_pool: Any = None, **named: Any) -> Any:
        eager, captured = module.forward, dict[int, Pieces | None]()

        def forward(input_ids: torch.Tensor, *arguments: Any, **by_name: Any) -> Any:
            run, size = partial(eager, input_ids, *arguments, **by_name), len(input_ids)
            if not in_graphs() or warms_up():
                return run()
            if size not in captured:
                captured[size] = None
                return run()
            pieces = captured[size]
            if pieces is None:
                captured[size] = pieces = Pieces(graph_pool)
                pieces.capture(run)
                return pieces.output
            return pieces.replay()

        module.forward = forward
        return module

    return install
