"""The streams that write and read the inputs of a forward pass.

A forward pass reads its inputs on the compute stream. If another stream writes them, the engine
must make the compute stream wait for it. The connector copies the inputs on the compute stream
without any wait of its own. The copies therefore have the values that the forward pass may read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.watch.facts import StaticInput


@contextmanager
def on_stream(runner: Any) -> Iterator[Any]:
    """Run the watcher on the compute stream of a runner."""
    stream = runner.inputs_and_outputs.compute_stream
    if stream is None:
        yield None
        return
    device = torch.get_device_module()
    writer = device.current_stream() if hasattr(device, "current_stream") else None
    with device.stream(stream):
        yield writer


def inputs_of(given: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the inputs that the engine copies from the host, by name."""
    found = {
        name: given[name]
        for name in ("input_ids", "position_ids", "cu_seq_lens_q", "logits_indices")
    }
    for group, ends in given["cu_seq_lens_k"].items():
        found[f"cu_seq_lens_k[{group}]"] = ends
    for kind in ("write_index", "read_index"):
        for number, index in enumerate(given[kind]):
            found[f"{kind}[{names[number]}]"] = index
    return found


def filled(
    inputs: Mapping[str, Tensor], prepared: Any, names: Mapping[int, str]
) -> dict[str, Tensor]:
    """Return the tensors that the engine fills with its inputs, by name."""
    if prepared is None:
        return dict(inputs)
    given = {
        "input_ids": prepared.input_ids[None],
        "position_ids": prepared.position_ids[None],
        "cu_seq_lens_q": prepared.cumulative_seqlens_q,
        "logits_indices": prepared.logits_indices,
        "cu_seq_lens_k": prepared.cumulative_seqlens_k,
        "write_index": prepared.write_index_storage,
        "read_index": prepared.read_index_storage,
    }
    found = dict(inputs)
    for name, whole in inputs_of(given, names).items():
        here = inputs[name]
        mine = whole[..., : here.shape[-1]]
        same = mine.shape == here.shape and mine.data_ptr() != here.data_ptr()
        if same and torch.equal(mine, here.to(mine.device)):
            found[name] = mine
    return found


def copied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of inputs, made on the current stream."""
    return {name: tensor.clone() for name, tensor in inputs.items()}


def unordered(early: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> list[StaticInput]:
    """Return the values that the compute stream read, with the written values as expected."""
    return [
        expected(f"{name} (read without waiting for its writer)", tensor, inputs[name])
        for name, tensor in early.items()
    ]
