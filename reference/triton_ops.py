"""The ops as Triton kernels: one launch per op, except the softmax of logits.

This module chooses grids and tiles. Tiles depend only on model widths, never on the number of rows,
which would change the order of a row's sums with the batch.
"""

from functools import cache

import torch
from paritybit.reference.kernels.elementwise import (
    embed_kernel,
    limit_rows_kernel,
    payload_kernel,
    rotary_kernel,
    scan_states_kernel,
)
from paritybit.reference.kernels.kv import attention_kernel, store_kv_kernel, store_rows_kernel
from paritybit.reference.kernels.products import (
    linear_add_kernel,
    norm_linear_kernel,
    project_heads_kernel,
)
from paritybit.reference.kernels.ranking import largest_kernel
from paritybit.reference.ops import ListedKeys, Ops, Paths, Reused
from torch import Tensor

TILE_AREA = 4096  # elements of a two-axis tile: 32 registers per thread
INPUT_TILE = 128  # input features per step of a product
STATE_TILE = 256  # state elements per program
RANKED_TILE = 1024  # row elements per step of a search
KEY_TILE = 32  # listed keys per step of attention, fewer if heads are wide


class TritonOps(Ops):
    """Ops for CUDA tensors.

    The last axis of every tensor is contiguous. Weights, tables and the cache are contiguous as a
    whole. Activations may be views with their own row stride.
    """

    def _payload(
        self, states: Tensor, state_mask: Tensor, encoder_table: Tensor, encoder_lens: Tensor
    ) -> Tensor:
        rows, hidden = states.shape
        output = states.new_empty(rows, hidden, dtype=torch.float32)
        tile = _tile(hidden, TILE_AREA)
        payload_kernel.launch(
            (rows, _pieces(hidden, tile), 1),
            output,
            states,
            state_mask,
            encoder_table,
            encoder_lens,
            HIDDEN=hidden,
            TILE=tile,
        )
        return output

    def _scan_states(
        self, states: Tensor, paths: Paths, table: Tensor, input_ids: Tensor, decay: Tensor
    ) -> Tensor:
        sources, parents, longest = paths
        rows, hidden = input_ids.shape[0], table.shape[1]
        output = table.new_empty(rows, hidden)
        tile = _tile(hidden, STATE_TILE)
        # One program runs all tokens in order if a token may follow another.
        tokens = 1 if longest == 1 else rows
        scan_states_kernel.launch(
            (rows // tokens, _pieces(hidden, tile), 1),
            output,
            states,
            sources,
            parents,
            table,
            input_ids,
            decay,
            tokens,
            HIDDEN=hidden,
            TILE=tile,
        )
        return output

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        count, width = values.shape
        store_rows_kernel.launch(
            (count, 1, 1),
            table,
            rows,
            count,
            values,
            values.stride(0),
            WIDTH=width,
            TILE=_power_of_2(width),
        )

    def _embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor:
        rows, hidden = input_ids.shape[0], table.shape[1]
        output = table.new_empty(rows, hidden)
        tile = _tile(hidden, TILE_AREA)
        embed_kernel.launch(
            (rows, _pieces(hidden, tile), 1),
            output,
            table,
            input_ids,
            payload,
            payload.stride(0),
            HIDDEN=hidden,
            TILE=tile,
        )
        return output

    def _rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        rows, pairs = positions.shape[1], frequency.shape[0]
        output = frequency.new_empty(2, rows, pairs)
        rotary_kernel.launch(
            (rows, 1, 1),
            output,
            output.stride(0),
            positions,
            positions.stride(0),
            positions.stride(1),
            section,
            frequency,
            PAIRS=pairs,
            TILE=_tile(pairs, TILE_AREA),
        )
        return output

    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        rows, outputs = hidden.shape[0], weight.shape[0]
        output = hidden.new_empty(rows, outputs)
        grid, constants = _product(rows, weight)
        norm_linear_kernel.launch(grid, output, hidden, hidden.stride(0), norm, weight, **constants)
        return output

    def _project_heads(
        self, hidden: Tensor, norm: Tensor, weight: Tensor, rotary: Tensor, turned: int
    ) -> tuple[Tensor, Tensor]:
        rows, dim = hidden.shape[0], 2 * rotary.shape[2]
        heads = weight.shape[0] // dim
        output = hidden.new_empty(rows, heads, dim)
        pieces, constants = _head_tiles(*weight.shape, dim // 2)
        project_heads_kernel.launch(
            (rows, pieces, 1),
            output,
            hidden,
            hidden.stride(0),
            norm,
            weight,
            rotary,
            rotary.stride(0),
            rotary.stride(1),
            turned,
            **constants,
        )
        found, others = output.split_with_sizes((turned, heads - turned), dim=1)
        return found, others

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return self._added(inputs, weight, residual)

    def _gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor:
        return self._added(gate_up, weight, residual, row_limit, gelu=activation == "gelu")

    def _added(
        self,
        inputs: Tensor,
        weight: Tensor,
        residual: Tensor,
        row_limit: Tensor | None = None,
        *,
        gelu: bool = False,
    ) -> Tensor:
        """Return residual + inputs times weight. With a limit of rows, the inputs are gated."""
        output = residual.new_empty(residual.shape)
        grid, constants = _product(residual.shape[0], weight)
        linear_add_kernel.launch(
            grid,
            output,
            inputs,
            inputs.stride(0),
            weight,
            residual,
            residual.stride(0),
            row_limit,
            GATED=row_limit is not None,
            GELU=gelu,
            **constants,
        )
        return output

    def _limit_rows(self, rows: Tensor, row_limit: Tensor) -> Tensor:
        count, width = rows.shape
        output = rows.new_empty(count, width)
        tile = _tile(width, TILE_AREA)
        limit_rows_kernel.launch(
            (count, _pieces(width, tile), 1),
            output,
            rows,
            rows.stride(0),
            row_limit,
            WIDTH=width,
            TILE=tile,
        )
        return output

    def _probabilities(self, logits: Tensor) -> Tensor:
        # Engines' draft runners have this op in their graphs.
        return torch.softmax(logits, dim=-1, dtype=torch.float32)

    def _largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        rows, width = values.shape
        found = values.new_empty(rows, count)
        places = values.new_empty(rows, count, dtype=torch.int64)
        largest_kernel.launch(
            (rows, 1, 1),
            found,
            places,
            values,
            values.stride(0),
            width,
            count,
            TILE=RANKED_TILE,
        )
        return found, places

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        rows, kv_heads, dim = key.shape
        store_kv_kernel.launch(
            (rows, 1, 1),
            cache,
            cache.stride(0),
            loc,
            rows,
            key,
            key.stride(0),
            value,
            value.stride(0),
            WIDTH=kv_heads * dim,
            TILE=_power_of_2(kv_heads * dim),
        )

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        # Neither `max_keys` nor `reused` is used: the kernel reads each row's own list to its end.
        begin, end, slots, mask, mask_start, _ = keys
        rows, heads, dim = query.shape
        output = query.new_empty(rows, heads, dim)
        masked = int(mask is not None)
        if mask is None or mask_start is None:  # The kernel takes both but reads neither.
            mask, mask_start = _nothing(query.device)
        attention_kernel.launch(
            (rows, heads, 1),
            output,
            query,
            query.stride(0),
            cache,
            cache.stride(0),
            begin,
            end,
            slots,
            sinks,
            masked,
            mask,
            mask_start,
            HAS_SINKS=sinks is not None,
            **_attention_tiles(heads, cache.shape[2], dim),
        )
        return output


@cache
def _nothing(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return an empty mask and empty row starts, which take no memory."""
    mask = torch.empty(0, dtype=torch.bool, device=device)
    return mask, torch.empty(0, dtype=torch.int64, device=device)


@cache
def _attention_tiles(heads: int, kv_heads: int, dim: int) -> dict[str, float]:
    """Return the constants of the attention kernel, except whether there are sinks."""
    tile = _power_of_2(dim)
    return {
        "SCALE": dim**-0.5,
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "KEYS": _tile(KEY_TILE, TILE_AREA // tile),
        "TILE": tile,
    }


def _power_of_2(width: int) -> int:
    """Return the smallest power of two that is at least `width`."""
    return 1 << (width - 1).bit_length()


def _pieces(width: int, tile: int) -> int:
    """Return how many tiles cover `width`."""
    return -(-width // tile)


def _tile(width: int, limit: int) -> int:
    """Return the smallest power of two that covers `width`, but at most `limit`."""
    return min(_power_of_2(width), limit)


def _product(rows: int, weight: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the grid and the constants of a product with `weight` [O, I]."""
    pieces, constants = _product_tiles(*weight.shape)
    return (rows, pieces, 1), constants


@cache
def _product_tiles(outputs: int, inputs: int) -> tuple[int, dict[str, int]]:
    """Return the number of tiles that cover a product's outputs, and its constants."""
    tile = _tile(inputs, INPUT_TILE)
    output_tile = _tile(outputs, TILE_AREA // tile)
    constants = {"OUTPUTS": outputs, "INPUTS": inputs, "OUTPUT_TILE": output_tile, "TILE": tile}
    return _pieces(outputs, output_tile), constants


@cache
def _head_tiles(outputs: int, inputs: int, pairs: int) -> tuple[int, dict[str, int]]:
    """Return the number of tiles that cover a product's rotary pairs, and its constants."""
    tile = _tile(inputs, INPUT_TILE)
    # Each pair has two sums.
    pair_tile = _tile(outputs // 2, TILE_AREA // 2 // tile)
    constants = {
        "OUTPUTS": outputs,
        "INPUTS": inputs,
        "PAIRS": pairs,
        "PAIR_TILE": pair_tile,
        "TILE": tile,
    }
    return _pieces(outputs // 2, pair_tile), constants
