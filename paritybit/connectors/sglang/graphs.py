"""The static inputs and outputs of a graph runner.

A runner keeps its inputs in `buffers`, its graphs in `graphs` or in a backend's `_graphs`, by the
size of the batch or a key that has it. What the batch gives to an input is the attribute of the
same name of the engine's ForwardBatch, or of the draft's input; its length says how many entries
belong to one row.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from paritybit.connectors.sglang.sources import source_of
from paritybit.watch.facts import StaticInput

AXES = {"mrope_positions": 1}
"""The axis of an input along which it is padded, where that is not the first."""

OF_BACKENDS = (
    "kv_indptr",
    "window_kv_indptr",
    "qo_indptr",
    "cuda_graph_kv_indices",
    "cuda_graph_window_kv_indices",
    "cuda_graph_swa_out_cache_loc",
    "cuda_graph_num_kv_splits",
    "cuda_graph_window_num_kv_splits",
    "cuda_graph_window_kv_offsets",
)
"""Inputs that attention backends keep, where they have them."""

PER_TOKEN = ("cuda_graph_swa_out_cache_loc",)
"""Inputs of backends with one entry per token."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The rows of a replay: live ones, those of the graph, and the tokens of one row."""

    live: int
    bucket: int
    tokens: int = 1


def graphs_of(runner: Any) -> Mapping[Any, Any]:
    """Return the whole graphs that a runner captured, by key."""
    found: dict[Any, Any] = {}
    for holder, name in ((runner, "graphs"), (getattr(runner, "backend", None), "_graphs")):
        graphs = getattr(holder, name, None)
        if isinstance(graphs, dict):
            found.update(graphs)
    return found


def outputs_of(runner: Any, key: Any, shape: Shape) -> dict[str, Tensor]:
    """Return the live part of what a graph computed, by name."""
    for holder, name in (
        (runner, "output_buffers"),
        (getattr(runner, "backend", None), "_outputs"),
    ):
        outputs = getattr(holder, name, None)
        if isinstance(outputs, dict) and key in outputs:
            return {
                name: tensor[: len(tensor) // shape.bucket * shape.live]
                for name, tensor in tensors(outputs[key], "")
                if tensor.ndim and len(tensor) and len(tensor) % shape.bucket == 0
            }
    return {}


def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in an output: a tensor, a sequence, or an object with attributes."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from tensors(item, f"{name}[{number}]" if name else f"output[{number}]")
    elif dataclasses.is_dataclass(value):
        for attribute, item in vars(value).items():
            if isinstance(item, Tensor):
                yield attribute, item


def bucket_of(key: Any) -> int | None:
    """Return the size in a graph's key: a number, something with `size`, or text ending in it."""
    size = getattr(key, "size", key)
    if isinstance(size, str):
        size = size.rpartition("_")[2]
        return int(size) if size.isdigit() else None
    return size if isinstance(size, int) else None


def inputs_of(
    runner: Any, batch: Any, shape: Shape, ranges: Mapping[str, tuple[int, int]]
) -> list[StaticInput]:
    """Return the static inputs of a runner. `batch` None gives them as at capture.

    `ranges` are the values that padding may hold, by name.
    """
    buffers = runner.buffers
    found = []
    for name, tensor in vars(buffers).items():
        if not isinstance(tensor, Tensor) or name == "next_token_logits_buffer":
            continue
        axis = AXES.get(name, 0)
        given = given_to(name, batch)
        length = tensor.shape[axis] if tensor.ndim else 1
        per_row = given.shape[axis] // shape.live if given is not None and shape.live else 0
        known = given is not None and given.shape[axis] == per_row * shape.live
        static = StaticInput(
            name,
            tensor,
            per_row * shape.live if known else length,
            min(per_row * shape.bucket, length) if known else length,
            axis,
            ranges.get(name) if known else None,
            source_of(name, type(buffers), type(runner)),
            given if known else None,
        )
        found.append(static)
    backend = backend_of(runner)
    for name in OF_BACKENDS:
        tensor = getattr(backend, name, None)
        if isinstance(tensor, Tensor):
            per_row = shape.tokens if name in PER_TOKEN and batch is not None else 0
            live, size = per_row * shape.live, per_row * shape.bucket
            length = len(tensor)
            source = source_of(name, type(backend))
            found.append(StaticInput(name, tensor, live or length, size or length, source=source))
    return found


def given_to(name: str, batch: Any) -> Tensor | None:
    """Return what the batch gives to an input, or None if it gives nothing."""
    for holder in (batch, getattr(batch, "spec_info", None)):
        value = getattr(holder, name, None)
        if isinstance(value, Tensor) and value.ndim:
            return value
    return None


def backend_of(runner: Any) -> Any:
    """Return the attention backend whose lists a runner's graphs read."""
    for name in ("attn_backend", "draft_extend_attn_backend"):
        backend = getattr(runner, name, None)
        if backend is not None:
            return backend
    return None
