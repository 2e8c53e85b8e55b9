"""Our decoder as the engine's model: its store and its metadata, our arithmetic around them."""

from typing import Any

import torch
from paritybit.reference.config import Kind, ModelConfig
from paritybit.reference.model import Model
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.paged.model import PagedDecoder
from paritybit.subjects.engines.paged.pages import Cache
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.vllm.settings import BLOCK
from torch import Tensor


def layer_name(index: int) -> str:
    """Return what the engine calls a layer's attention."""
    return f"layers.{index}.attention"


def spec_of(engine: Engine, config: ModelConfig, kind: Kind) -> Any:
    """Return the engine's description of the KV of layers of one kind."""
    module, shape = engine.module("v1.kv_cache_interface"), config.shape(kind)
    common = {
        "block_size": BLOCK,
        "num_kv_heads": shape.kv_heads,
        "head_size": shape.head_dim,
        "dtype": torch.float32,
    }
    if kind is Kind.FULL:
        return module.FullAttentionSpec(**common)
    return module.SlidingWindowSpec(**common, sliding_window=config.window)


def attention_layer(engine: Engine, model: Model, index: int) -> Any:
    """Return a layer of the engine's kind for attention, with its Triton backend."""
    base = engine.part("model_executor.layers.attention_layer_base:AttentionLayerBase")
    backend = engine.part("v1.attention.backends.triton_attn:TritonAttentionBackend")
    config = model.config
    kind = config.layers[index]
    shape = config.shape(kind)

    class Layer(base):  # type: ignore[misc,valid-type]
        """What the engine finds of one of our layers, by the names that it asks for."""

        num_heads = config.heads
        attn_type = "decoder"
        impl = backend.get_impl_cls()(
            num_heads=config.heads,
            head_size=shape.head_dim,
            scale=shape.head_dim**-0.5,
            num_kv_heads=shape.kv_heads,
            alibi_slopes=None,
            sliding_window=config.window if kind is Kind.SWA else None,
            kv_cache_dtype="auto",
            sinks=model.layers[index].sinks,
        )

        def __init__(self) -> None:
            self._q_scale = self._k_scale = self._v_scale = torch.ones(
                1, device=model.embedding.device
            )

        def get_attn_backend(self) -> Any:
            return backend

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            return spec_of(engine, config, kind)

        @property
        def cache(self) -> Tensor:
            """The layer's KV, as the engine bound it: some releases bind a list of one."""
            held: Any = self.kv_cache
            bound: Tensor = held[0] if isinstance(held, list) else held
            return bound

    return Layer()


def keys_and_values(layer: Any) -> Cache:
    """Return views of K and V of a layer, each [blocks, slots of a block, kv_heads, head_dim].

    Some releases pack both into the last axis, others have an axis for them.
    """
    cache: Tensor = layer.cache
    if cache.ndim == 5:
        key, value = cache.unbind(1)
        return key, value
    key, value = cache.transpose(1, 2).split(layer.impl.head_size, dim=-1)
    return key, value


class Decoder(PagedDecoder):
    """Our decoder, whose K and V the engine stores where its own metadata says.

    With `own_kernels` its layers attend by the engine's Triton kernel. `first` is the engine's
    number of its first layer, `names` what the engine calls them.
    """

    def __init__(
        self, engine: Engine, model: Model, ops: Ops, *, own_kernels: bool = False, first: int = 0
    ) -> None:
        super().__init__(model, ops)
        self.own_kernels = own_kernels
        layers = range(len(model.config.layers))
        self.attention = [attention_layer(engine, model, layer) for layer in layers]
        self.names = [layer_name(first + layer) for layer in layers]
        self.context = engine.part("forward_context:get_forward_context")

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let the engine store key and value, then attend by what its metadata says."""
        name, held = self.names[layer], self.attention[layer]
        context = self.context()
        metadata = context.attn_metadata[name]
        slots = context.slot_mapping[name]
        held.impl.do_kv_cache_update(held, key, value, held.cache, slots)
        if self.own_kernels:
            output = torch.zeros_like(query)
            held.impl.forward(held, query, key, value, held.cache, metadata, output)
            return output
        return self.attended_by(layer, query, metadata)

    def attended_by(self, layer: int, query: Tensor, metadata: Any) -> Tensor:
        """Return what tokens attend to by our arithmetic and the engine's metadata."""
        listed = metadata.query_start_loc, metadata.seq_lens, metadata.block_table
        return self.attended(layer, query, keys_and_values(self.attention[layer]), *listed)
