"""What the attention layers of an engine get, store and return, for the rows of a forward.

Triton's prefills attend to the keys and values that they get, and to those stored before. So do
drafts that are verified, which are judged unless they form a tree. FlashAttention attends to those
stored. Layers of compressed KV attend to latents, as keys whose first part is the value, or
prefills to what latents expand to.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.attention import Attending, Layers
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe, place_of
from paritybit.connectors.sglang.attention import FLASH, TRITON, VERIFY, chunks_of
from paritybit.connectors.sglang.models import Models
from paritybit.connectors.sglang.pools import PREFILLS, SglangPool
from paritybit.connectors.sglang.rows import mode_of
from paritybit.watch.bits import in_numbers
from paritybit.watch.facts import Window

PLAIN = {"is_cross_attention": False, "xai_temperature_len": -1}
"""Attributes of a layer with the values that they must have."""

CHUNKED = "use_irope"
"""The attribute that says whether a layer attends in chunks, if its backend does."""


class Attended(Models):
    """The part of an engine that follows its attention layers."""

    eager: Any = None
    """The forward that runs again without its graph."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.layers = Layers()

    def attends(
        self,
        original: Call,
        backend: Any,
        q: Tensor,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **others: Any,
    ) -> None:
        """Judge what a layer stores and returns, if it is its turn."""
        now, call, mode = self.now or self.eager, None, mode_of(forward_batch)
        judges = now is not None and now.forward.rows and not now.model.drafts
        kind, decodes = type(backend).__name__, mode == "decode"
        verifies = judges and mode == VERIFY and kind == TRITON and in_chains(now)
        judges = judges and (decodes or mode in PREFILLS or verifies)
        name = f"layer {maybe(layer, 'layer_id')}"
        if judges and self.layers.due(name, self.forwards):
            with self.recognising("attention"):
                unknown = {key for key, one in others.items() if one is not None} - {"sinks"}
                rules = {key: getattr(layer, key, one) for key, one in PLAIN.items()}
                causal = maybe(layer, "attn_type.value") in (None, "decoder")
                chunks = chunks_of(backend)
                known = kind == TRITON or (kind == FLASH and "cp" not in self.rank())
                cut = getattr(layer, CHUNKED, False)
                if unknown or not causal or rules != PLAIN or not known or (cut and not chunks):
                    raise NotRecognisedError("attention with other rules, or of another backend")
                group, window, stored = stored_of(now.model.pool, layer)
                held, count = held_by(stored, layer), len(stored)
                if count == 1 and layer.tp_k_head_num > 1:
                    held, count = expanded(held, now.model.runner.model, layer), 2
                new = (k, v)[:count] if k is not None else ()
                prefix = maybe(forward_batch, "attn_attend_prefix_cache")
                if prefix or any(len(one) != len(q) for one in new):
                    raise NotRecognisedError("attention to a prefix of compressed KV")
                call = Attending(
                    name=name,
                    rows=now.forward.rows,
                    group=group,
                    window=chunks if cut else window,
                    queries=q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
                    given=[one.view(len(one), layer.tp_k_head_num, -1) for one in new],
                    held=held,
                    own=kind == TRITON and k is not None and not decodes,
                    width=layer.v_head_dim,
                    how={
                        "scale": layer.scaling,
                        "cap": layer.logit_cap,
                        "sinks": others.get("sinks"),
                    },
                    source=place_of(original.function),
                ).noted()
        made = original()
        with self.recognising("attention"):
            if call is not None:
                whole = not maybe(forward_batch, "mha_return_lse")
                self.layers.values += call.judged(made if whole else made[0], whole)


def in_chains(now: Any) -> bool:
    """Return whether the drafts of each request that a forward verifies follow one another."""
    rows, count = now.rows, maybe(now.batch, "spec_info.draft_token_num")
    alone = rows.batch_rows == [*range(len(rows.rows))]
    return alone and all(row.computed == count for row in rows.rows)


def stored_of(pool: SglangPool, layer: Any) -> tuple[str, Window | None, list[Tensor]]:
    """Return the group of a layer, its window, and its tensors by slot.

    Raises NotRecognisedError.
    """
    number, sliding = int(layer.layer_id), False
    if (places := maybe(pool.pool, "layers_mapping")) is not None:
        number, sliding = places[number]
    elif (places := maybe(pool.pool, "full_attention_layer_id_mapping")) is not None:
        number = places[number]
    group = pool.group_of(sliding)
    if group is None or pool.share.ranks > 1:
        raise NotRecognisedError("attention of a layer without a group, or to a part of the KV")
    part = pool.parts[group]()
    names = ("kv_buffer",) if maybe(part, "kv_buffer") is not None else ("k_buffer", "v_buffer")
    number -= int(maybe(part, "start_layer") or 0)
    stored = [getattr(part, name)[number] for name in names]
    return (
        group,
        pool.window if sliding else None,
        [in_numbers(one, maybe(part, "dtype")) for one in stored],
    )


def held_by(stored: Sequence[Tensor], layer: Any) -> Callable[[Tensor], list[tuple[Tensor, Any]]]:
    """Return a function that returns what slots hold, with the scales of the layer."""
    scales = [1.0 if one is None else one for one in (layer.k_scale, layer.v_scale)]
    return lambda slots: [
        (one.view(torch.uint8)[slots].view(one.dtype) if one.itemsize == 1 else one[slots], scale)
        for one, scale in zip(stored, scales, strict=False)
    ]


def expanded(
    held: Callable[[Tensor], list[tuple[Tensor, Any]]], model: Any, layer: Any
) -> Callable[[Tensor], list[tuple[Tensor, Any]]]:
    """Return a function that returns what the latents in slots expand to.

    Raises NotRecognisedError.
    """
    owner: Any = next((one for one in model.modules() if maybe(one, "attn_mha") is layer), None)
    weight = maybe(owner, "kv_b_proj.weight")
    if weight is None or not weight.is_floating_point() or weight.itemsize == 1:
        raise NotRecognisedError("compressed KV with other weights")
    plain, rank = int(owner.qk_nope_head_dim), int(owner.kv_lora_rank)

    def of_heads(slots: Tensor) -> list[tuple[Tensor, Any]]:
        ((kept, scale),) = held(slots)
        latent, rotated = (kept.float() * scale).split([rank, kept.shape[-1] - rank], -1)
        parts = (latent @ weight.float().t()).view(len(slots), layer.tp_k_head_num, -1)
        keys, values = parts.split([plain, parts.shape[-1] - plain], -1)
        keys = torch.cat([keys, rotated.expand(-1, keys.shape[1], -1)], -1)
        return [(one.to(weight.dtype), 1.0) for one in (keys, values)]

    return of_heads
