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
from paritybit.connectors.transformers.inputs import named
from paritybit.watch.facts import StaticInput


@contextmanager
def on_stream(runner: Any) -> Iterator[Any]:
    """Run the watcher on a runner's compute stream. Yields the stream that writes, or None."""
    stream = runner.inputs_and_outputs.compute_stream
    if stream is None:
        yield None
        return
    device = torch.get_device_module()
    writer = device.current_stream() if hasattr(device, "current_stream") else None
    with device.stream(stream):
        yield writer


def filled(
    inputs: Mapping[str, Tensor], prepared: Any, names: Mapping[int, str]
) -> dict[str, Tensor]:
    """Return the tensors that the engine fills with its inputs, by name.

    These are those of `prepared` on the host, if the inputs are copies of them.
    """
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
    for name, whole in named(given, names).items():
        here = inputs[name]
        mine = whole[..., : here.shape[-1]]
        same = mine.shape == here.shape and mine.data_ptr() != here.data_ptr()
        if same and torch.equal(mine, here.to(mine.device)):
            found[name] = mine
    return found


def unordered(early: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> list[StaticInput]:
    """Return the values that the compute stream read, with the written values as expected."""
    return [
        expected(f"{name} (read without waiting for its writer)", tensor, inputs[name])
        for name, tensor in early.items()
    ]
