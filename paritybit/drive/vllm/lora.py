"""vLLM's LoRA kernels in torch, over the lists that they get, and files with tiny adapters.

The tokens of a forward are sorted by the slot of their adapter. Entry i of the lists belongs to the
i-th of these slots, `ids[i]`, where -1 has no weights: its tokens are the `counts[i]` entries of
`order` from `starts[i]` on. Weights have shape [slots, 1, written, read].
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.models import Model
from paritybit.drive.operating.adapters import config_of, name_of
from paritybit.drive.operating.weights import adapter_weights
from paritybit.drive.stand_ins.attention import unbounded
from paritybit.engines.graphs import whole

on_host = Tensor.numpy
"""The method before a recording graph replaces it."""


def shrink(inputs: Tensor, matrices: Sequence[Tensor], output: Tensor, *given: Any) -> None:
    """Write the products of tokens and A matrices, with a factor, to `output` [slices, T, rank]."""
    *lists, scale = given
    _with_lists(_shrink, inputs, matrices, output, lists, scale)


def expand(
    inputs: Tensor,
    matrices: Sequence[Tensor],
    output: Tensor,
    *lists: Tensor,
    offset_start: int = 0,
    add_inputs: bool = False,
) -> None:
    """Write the products of `inputs` [slices, T, rank] and B matrices to columns of `output`."""
    _with_lists(_expand, inputs, matrices, output, lists, offset_start, add_inputs)


def _with_lists(
    function: Callable[..., None],
    inputs: Tensor,
    matrices: Sequence[Tensor],
    output: Tensor,
    given: Sequence[Tensor],
    *rest: float,
) -> None:
    """Call a function with the lists of an engine, unless no token has an adapter."""
    _, *lists, no_lora, active = given
    if not on_host(no_lora).any():
        whole(function)(inputs, matrices, output, lists, int(on_host(active)[0]), *rest)


def _shrink(
    inputs: Tensor,
    matrices: Sequence[Tensor],
    output: Tensor,
    lists: Sequence[Tensor],
    active: int,
    scale: float,
) -> None:
    output.zero_()
    for slot, tokens in _groups(lists, active, len(inputs)):
        for part, matrix in zip(output, matrices, strict=True):
            part[tokens] = scale * (inputs[tokens] @ _of(matrix, slot).T).to(part.dtype)


def _expand(
    inputs: Tensor,
    matrices: Sequence[Tensor],
    output: Tensor,
    lists: Sequence[Tensor],
    active: int,
    first: int,
    add: bool,
) -> None:
    for slot, tokens in _groups(lists, active, len(output)):
        column = first
        for part, matrix in zip(inputs, matrices, strict=True):
            chosen = _of(matrix, slot)
            columns = slice(column, column + len(chosen))
            made = (part[tokens].to(chosen.dtype) @ chosen.T).to(output.dtype)
            output[tokens, columns] = output[tokens, columns] + made if add else made
            column += len(chosen)


def _groups(lists: Sequence[Tensor], active: int, size: int) -> Iterator[tuple[int, Tensor]]:
    """Yield each slot with weights, and its tokens. The kernel's grid has `active` slots."""
    order, counts, starts, ids = lists
    order = unbounded(order)
    for index in range(min(active, len(ids))):
        tokens = order[int(starts[index]) :][: int(counts[index])].long()
        if int(ids[index]) >= 0:
            yield int(ids[index]), tokens[tokens < size]


def _of(matrix: Tensor, slot: int) -> Tensor:
    return matrix[slot].reshape(matrix.shape[-2:])


def write(model: Model, count: int, folder: Path, version: int = 0) -> dict[int, dict[str, Any]]:
    """Write adapters for a model to new folders. Returns the fields of vLLM's requests for them.

    Each `version` has other weights.
    """
    made = {}
    for number in range(1, count + 1):
        place = folder / str(version) / name_of(number)
        place.mkdir(parents=True)
        (place / "adapter_config.json").write_text(json.dumps(config_of(number)))
        torch.save(adapter_weights(model, number, version), place / "adapter_model.bin")
        names = {"lora_name": name_of(number), "lora_int_id": number, "lora_path": str(place)}
        made[number] = names
    return made
