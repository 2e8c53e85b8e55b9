"""Copies of KV between a pool and the host with torch.

Each function does what the compiled function of its name does. In names, `lf` is a pool with the
layer first, and `pf` one with the page first.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.sglang.late import Clock

WITHOUT = 1 / 8
"""The part of the loads of windows that find no room."""


def transfer_kv_direct(
    src_layers: Sequence[Tensor],
    dst_layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy rows of tensors to rows of others."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices].to(target.device)


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copy whole pages of a layer from the host."""
    layers = [source[:, layer_id].flatten(0, 1) for source in src_ptrs]
    transfer_kv_direct(layers, dst_ptrs, src_indices, dst_indices, page_size)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy whole pages of all layers to the host. The layers of the first target come first."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        pages = source.view(-1, page_size, *source.shape[1:])
        dst_ptrs[number // layers][dst_indices[::page_size] // page_size, number % layers] = pages[
            src_indices[::page_size] // page_size
        ]


def transfer_kv_per_layer_mla(
    src: Tensor, dst: Tensor, src_indices: Tensor, dst_indices: Tensor, item_size: int
) -> None:
    """Copy rows of a layer from the host."""
    dst[dst_indices] = src[src_indices]


def transfer_kv_per_layer_mla_pf_lf(
    src: Tensor, layer_id: int, src_layout_dim: int, **given: Any
) -> None:
    """Copy rows of a layer from the host."""
    transfer_kv_per_layer_mla(src[:, layer_id], **given)


def transfer_kv_per_layer(
    src_k: Tensor, dst_k: Tensor, src_v: Tensor, dst_v: Tensor, **given: Any
) -> None:
    """Copy rows of a layer from the host."""
    transfer_kv_per_layer_mla(src_k, dst_k, **given)
    transfer_kv_per_layer_mla(src_v, dst_v, **given)


def transfer_kv_per_layer_pf_lf(
    src_k: Tensor, src_v: Tensor, layer_id: int, src_layout_dim: int, **given: Any
) -> None:
    """Copy rows of a layer from the host."""
    transfer_kv_per_layer(src_k[:, layer_id], src_v=src_v[:, layer_id], **given)


def transfer_kv_all_layer_mla(
    src_layers: Tensor,
    dst_layers: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
) -> None:
    """Copy rows of all layers, which are given by their addresses."""
    for source, target in zip(src_layers.tolist(), dst_layers.tolist(), strict=True):
        held = memory(source, src_indices, item_size)[src_indices]
        memory(target, dst_indices, item_size)[dst_indices] = held


def transfer_kv_all_layer(
    src_k_layers: Tensor,
    dst_k_layers: Tensor,
    src_v_layers: Tensor,
    dst_v_layers: Tensor,
    **given: Any,
) -> None:
    """Copy rows of all layers, which are given by their addresses."""
    transfer_kv_all_layer_mla(src_k_layers, dst_k_layers, **given)
    transfer_kv_all_layer_mla(src_v_layers, dst_v_layers, **given)


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
) -> None:
    """Copy rows of all layers to the host. Those of the pool are given by their addresses."""
    for layer, source in enumerate(src_layers.tolist()):
        held = memory(source, src_indices, item_size)[src_indices]
        dst[dst_indices, layer] = held.view(dst.dtype).view(-1, *dst.shape[2:])


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Tensor, dst_k: Tensor, src_v_layers: Tensor, dst_v: Tensor, **given: Any
) -> None:
    """Copy rows of all layers to the host. Those of the pool are given by their addresses."""
    transfer_kv_all_layer_mla_lf_pf(src_k_layers, dst_k, **given)
    transfer_kv_all_layer_mla_lf_pf(src_v_layers, dst_v, **given)


def in_any_order(clear: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a method that empties a pool on the host, and shuffles its pages as long use does."""

    def cleared(pool: Any) -> None:
        clear(pool)
        pages = pool.alloc(pool.available_size()).view(-1, pool.page_size)
        order = torch.randperm(len(pages), generator=torch.Generator().manual_seed(len(pages)))
        pool.free(pages[order].flatten())

    return cleared


def reused_at_once(free: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
    """Return a method that frees slots on the host, which come next, as in a pool that is full."""

    def freed(pool: Any, indices: Tensor) -> Any:
        result = free(pool, indices)
        if merge := getattr(pool, "_merge_release_slots", None):
            merge()
        before = len(pool.free_slots) - len(indices)
        pool.free_slots = torch.cat([pool.free_slots[before:], pool.free_slots[:before]])
        return result

    return freed


def sometimes_without(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that takes slots for what is loaded beside KV, unless there are none."""

    @functools.wraps(resolve)
    def resolved(controller: Any, pools: Any, *given: Any, **named: Any) -> Any:
        asks = (one.device_indices is None and one.host_indices is not None for one in pools or ())
        if any(asks) and Clock.chance.random() < WITHOUT:
            return None
        return resolve(controller, pools, *given, **named)

    return resolved


def memory(address: int, indices: Tensor, size: int) -> Tensor:
    """Return the rows at an address, up to the largest index, as bytes [rows, size]."""
    rows = int(indices.max()) + 1
    held = (ctypes.c_char * (rows * size)).from_address(address)
    return torch.frombuffer(held, dtype=torch.uint8).view(rows, size)


COPIES: Sequence[Callable[..., None]] = (
    *(transfer_kv_direct, transfer_kv_per_layer_direct_pf_lf, transfer_kv_all_layer_direct_lf_pf),
    *(transfer_kv_per_layer, transfer_kv_per_layer_pf_lf),
    *(transfer_kv_all_layer, transfer_kv_all_layer_lf_pf),
    *(transfer_kv_per_layer_mla, transfer_kv_per_layer_mla_pf_lf),
    *(transfer_kv_all_layer_mla, transfer_kv_all_layer_mla_lf_pf),
)
