"""The streams that write and read the inputs of a forward pass.

A forward pass reads its inputs on the stream that computes. Where another stream writes them, the
engine must make the first wait for the second. Here nothing waits until the inputs are copied on
the stream that computes, so that the copies are what a forward pass may read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import StaticInput


@contextmanager
def on_stream(runner: Any) -> Iterator[Any]:
    """Let the watcher see what the stream of a runner computed.

    Gives the stream that writes the inputs of the next forward pass, None without streams.
    """
    stream = runner.inputs_and_outputs.compute_stream
    if stream is None:
        yield None
        return
    device = torch.get_device_module()
    writer = device.current_stream() if hasattr(device, "current_stream") else None
    with device.stream(stream):
        yield writer


def inputs_of(given: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the inputs that the engine writes from lists on the host, by name.

    `names` are the groups by number.
    """
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


def copied(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of inputs, made on the current stream."""
    return {name: tensor.clone() for name, tensor in inputs.items()}


def unordered(early: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Iterator[StaticInput]:
    """Yield what the stream that computes found, to compare with what was written."""
    for name, tensor in early.items():
        what, size = f"{name} (read without waiting for its writer)", len(tensor)
        yield StaticInput(what, tensor, size, size, expected=inputs[name])
