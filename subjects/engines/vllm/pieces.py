"""The engine's runner of batches in pieces: graphs up to attention, which runs eagerly in between.

Every batch of no more tokens than were captured is replayed, prefills and decodes alike, padded in
tokens. Stores of KV are in the graphs; attention runs on the requests' own tokens.
"""

import inspect
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from paritybit.reference.model import Heads, Model
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.shared.missing import PartMissingError, RunnerLackingError
from paritybit.subjects.engines.vllm.model import Decoder
from paritybit.subjects.engines.vllm.runner import VllmRunner
from paritybit.subjects.graphs.pieces import CutModel, PieceOutput
from torch import Tensor

ATTENTION = "model_executor.layers.attention.attention"
"""The engine's module of the calls that store KV and attend."""

MANAGER = "v1.worker.gpu.cudagraph_utils"
"""The engine's module that captures, and picks what is replayed."""


class BreakingDecoder(Decoder):
    """Our decoder with the engine's own calls for its stores and for attention.

    Its own graphs break at the latter.
    """

    def __init__(self, engine: Engine, model: Model, ops: Ops, *, own_kernels: bool) -> None:
        super().__init__(engine, model, ops, own_kernels=own_kernels)
        self.store: Callable[..., Any] = engine.part(f"{ATTENTION}:unified_kv_cache_update")
        self.mix: Callable[..., Any] = engine.part(f"{ATTENTION}:unified_attention_with_output")
        for index, layer in enumerate(self.attention):
            layer.impl.forward = partial(self._mixed, index)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let the engine store key and value, then attend where it breaks its graph."""
        mixed = self.stored(layer, Heads(query, key, value))
        self.mix(query, key, value, mixed, self.names[layer])
        return mixed

    def stored(self, layer: int, heads: Heads) -> Tensor:
        """Let the engine store a layer's K and V; return room for what attention gives."""
        self.store(heads.key, heads.value, self.names[layer])
        return torch.zeros_like(heads.query)

    def _mixed(
        self,
        index: int,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        metadata: Any,
        output: Tensor,
        **rest: Any,
    ) -> None:
        """Stand for a layer's attention kernel: write what the live tokens attend to, alone."""
        if metadata is None:  # A release that captures its pieces without any.
            output.zero_()
            return
        live = metadata.num_actual_tokens
        output[:live] = self.attended_by(index, query[:live], metadata)


class CutDecoder(BreakingDecoder):
    """The decoder cut at attention, each piece in the engine's own wrapper."""

    pieces: list[Callable[..., Any]]

    def cut(self, engine: Engine, config: Any) -> "CutDecoder":
        """Return this decoder with new pieces, wrapped as those that are compiled."""
        other, count = copy(self), len(self.attention)
        wrapper, options = (
            engine.part(f"compilation.cuda_graph:{name}")
            for name in ("CUDAGraphWrapper", "CUDAGraphOptions")
        )
        mode = engine.part("config.compilation:CUDAGraphMode").PIECEWISE
        model = CutModel(self.weights, self.ops, self.stored)

        def first(input_ids: Tensor, positions: Tensor) -> PieceOutput:
            return model.first(self.inputs(input_ids, positions))

        between = [partial(model.between, layer) for layer in range(count - 1)]
        pieces = [first, *between, partial(model.after, count - 1)]
        other.pieces = [
            wrapper(piece, config, mode, options(place == 0, place > 0, place == count))
            for place, piece in enumerate(pieces)
        ]
        return other

    def forward(self, input_ids: Tensor, positions: Tensor, *rest: Any, **named: Any) -> Any:
        """Return the hidden states of every token, padded ones included."""
        left = self.pieces[0](input_ids, positions)
        for layer, piece in enumerate(self.pieces[1:]):
            heads = left.heads
            self.mix(heads.query, heads.key, heads.value, left.mixed, self.names[layer])
            left = piece(left)
        return left


class PiecewiseRunner(VllmRunner):
    """The engine's runner with graphs of pieces: captured one by one, or with `breaks` at once."""

    decodes: type[Decoder] = CutDecoder
    breaks = False
    pieces = True

    def prepare(self) -> None:
        """Let the engine take our model for one that it compiled."""
        super().prepare()
        self.graphs = len(self.model.config.layers) + 1
        answers = {
            "is_breakable_cudagraph_enabled": lambda: self.breaks,
            "has_compiled_submodule": lambda model: True,
        }
        self.engine.fill(MANAGER, answers)

    def capture(self) -> None:
        """Let the engine capture its graphs, of pieces that nothing captured before."""
        self.renew()
        super().capture()

    def renew(self) -> None:
        """Cut the decoder into pieces of which nothing is captured."""
        decoder = self.decoder
        assert isinstance(decoder, CutDecoder)
        self.decoder = self.runner.model = decoder.cut(self.engine, self.runner.vllm_config)


class BreakableRunner(PiecewiseRunner):
    """The engine's runner with graphs that it breaks at attention while it captures."""

    decodes = BreakingDecoder
    breaks = True

    def renew(self) -> None:
        """Let the engine capture anew.

        Raises RunnerLackingError where its graph manager never breaks graphs, PartMissingError
        where it no longer says that it does.
        """
        manager = self.runner.cudagraph_manager
        if not getattr(manager, "use_breakable_cg", False):
            if "breakable" in inspect.getsource(self.engine.module(MANAGER)):
                raise PartMissingError(f"the graph manager of {MANAGER} has no use_breakable_cg")
            raise RunnerLackingError(f"the engine's {MANAGER} has no breakable graphs")
        manager.breakable_cg_runner = None
