"""What the attention layers of an engine get, store and return, for the rows of a forward.

| layer | its KV |
|---|---|
| of Triton or FlashAttention | [blocks, heads, block size, bytes of a key and of a value] |
| of compressed KV | [blocks, block size, latent and rotated key], for all heads |

Quantised KV has a scale for all heads and tokens, or one for each, which follows its bytes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.attention import ON_A_GPU, Attending, Layers, on_a_gpu
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe, place_of
from paritybit.connectors.vllm.drafting import draft_layers
from paritybit.connectors.vllm.sampling import JudgedRows

SCALE = torch.float32.itemsize
"""The bytes of a scale."""


class Attended(JudgedRows):
    """The part of an engine that follows its attention layers."""

    eager: Any = None
    """The forward that runs again without its graph."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.layers = Layers()
        self.followed = set[str]()
        """The names of the layers of the target."""

    def follow_attention(self, runner: Any) -> None:
        """Follow the attention layers of the target, if they are on a CPU."""
        if on_a_gpu(runner.get_model()):
            self.journal.scope(attention_not_watched=ON_A_GPU)
            return
        layers = runner.vllm_config.compilation_config.static_forward_context
        self.followed = {*layers} - {*draft_layers(runner)}
        for layer in layers.values():
            if hasattr(layer, "forward_impl"):
                self.hook(type(layer), "forward_impl", self.attends_compressed)
            elif hasattr(impl := maybe(layer, "impl"), "forward"):
                self.hook(type(impl), "forward", self.attends)

    def attends(
        self,
        original: Call,
        impl: Any,
        layer: Any,
        query: Tensor,
        key: Any,
        value: Any,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Any = None,
    ) -> None:
        """Judge what a layer stores and returns."""

        def of_heads() -> Attending:
            others = maybe(impl, "alibi_slopes"), maybe(attn_metadata, "mm_prefix_range_tensor")
            if maybe(attn_metadata, "causal") is not True or others != (None, None):
                raise NotRecognisedError("attention with other rules")
            sinks, cap = maybe(impl, "sinks"), maybe(impl, "logits_soft_cap") or 0.0
            return Attending(
                **self.facts(layer.layer_name, original),
                queries=query,
                given=() if key is None else (key, value),
                held=by_head(kv_cache, impl, layer),
                how={"scale": impl.scale, "cap": cap, "sinks": sinks},
            )

        self.attended(original, maybe(layer, "layer_name"), output, of_heads)

    def attends_compressed(
        self,
        original: Call,
        layer: Any,
        q: Tensor,
        k_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any = None,
        output: Any = None,
    ) -> None:
        """Judge what a layer of compressed KV stores and returns."""

        def of_latents() -> Attending:
            up, down = maybe(layer, "W_UK_T"), maybe(layer, "W_UV")
            plain = up is not None and down is not None and kv_cache.is_floating_point()
            if maybe(layer, "impl.is_sparse") or not plain:
                raise NotRecognisedError("attention to chosen keys, or of another dtype")
            nope, rotated = q.split([up.shape[1], q.shape[-1] - up.shape[1]], -1)
            page, scale = kv_cache.shape[1], layer._k_scale
            return Attending(
                **self.facts(layer.layer_name, original),
                queries=torch.cat([torch.einsum("tnp,npl->tnl", nope, up), rotated], -1),
                given=[torch.cat([k_c_normed, k_pe.flatten(1)], -1)[:, None]],
                held=lambda slots: [(kv_cache[slots // page, slots % page][:, None], scale)],
                width=up.shape[-1],
                made=lambda found: torch.einsum("tnl,nlv->tnv", found, down),
                how={"scale": layer.scale},
            )

        self.attended(original, maybe(layer, "layer_name"), output, of_latents)

    def attended(
        self, original: Call, name: str, output: Any, described: Callable[[], Attending]
    ) -> None:
        """Judge a call of a layer, if it is its turn. `described` returns it."""
        now, call = self.now or self.eager, None
        judges = now is not None and maybe(now, "forward.rows") and name in self.followed
        if judges and self.layers.due(name, self.forwards):
            with self.recognising("attention"):
                call = described().noted()
        original()
        with self.recognising("attention"):
            if call is not None:
                self.layers.values += call.judged(output)

    def facts(self, name: str, call: Call) -> dict[str, Any]:
        """Return the facts of a call of a layer. Raises NotRecognisedError."""
        now, pool = self.now or self.eager, self.pool
        assert pool is not None
        groups = enumerate(now.runner.kv_cache_config.kv_cache_groups)
        number = next((at for at, one in groups if name in one.layer_names), None)
        places = [at for at, one in enumerate(pool.targets) if one.number == number]
        mine = [
            (group.name, layer.window)
            for group in pool.groups
            for layer in group.layers
            if name in layer.name.split(", ")
        ]
        if not places or not mine or pool.share.ranks > 1 or "cp" in self.rank():
            raise NotRecognisedError("attention of other layers, or of a part of the tokens")
        live, (group, window) = len(now.forward.rows) // now.forward.repeats, mine[0]
        return {
            "name": name,
            "rows": now.forward.rows[places[0] * live : (places[0] + 1) * live],
            "group": group,
            "window": window or pool.targets[places[0]].window,
            "source": place_of(call.function),
        }


def by_head(cache: Tensor, impl: Any, layer: Any) -> Callable[[Tensor], list[tuple[Tensor, Any]]]:
    """Return a function that returns what slots hold. Raises NotRecognisedError."""
    heads, width = int(impl.num_kv_heads), int(impl.head_size)
    rest = cache.shape[-1] - 2 * width if cache.dim() == 4 else None
    if rest not in (0, 2 * SCALE // cache.itemsize) or cache.shape[1] != heads:
        raise NotRecognisedError(f"attention to KV of shape {tuple(cache.shape)}")
    dtype = maybe(impl, "fp8_dtype") if cache.dtype == torch.uint8 else cache.dtype
    if dtype is None:
        raise NotRecognisedError("attention to KV of an unknown dtype")
    page = cache.shape[2]

    def held(slots: Tensor) -> list[tuple[Tensor, Any]]:
        parts = cache[slots // page, :, slots % page].chunk(2, -1)
        scales = [layer._k_scale, layer._v_scale]
        if rest:
            scales = [one[..., width:].contiguous().view(torch.float32) for one in parts]
        pairs = zip(parts, scales, strict=True)
        return [(one[..., :width].contiguous().view(dtype), scale) for one, scale in pairs]

    return held
