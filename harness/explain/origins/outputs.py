"""Whether a value is a view of an earlier step's output that was overwritten since.

Outputs of replays are static, and the harness overwrites them after reading. A value is looked up
among them if it is NaN where the eager world has a number, or 0 where it has another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from paritybit.harness.explain.facts import KeptOutput
from paritybit.harness.lockstep.bits import bits
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.model import Output
from paritybit.subjects.protocol import Replay
from torch import Tensor


@dataclass(frozen=True)
class GivenOutput:
    """A copy of the output of one replay, made before it was overwritten."""

    step: int
    runner: str
    output: Output


class OutputLedger:
    """Keeps the output of each replay."""

    def __init__(self) -> None:
        self.given: list[GivenOutput] = []

    def follow(self, step: int, replay: Replay | None) -> None:
        """Copy the live output of a step, if it replayed a graph."""
        if replay is not None:
            output = {name: values.clone() for name, values in replay.live_output.items()}
            self.given.append(GivenOutput(step, replay.runner, output))


def overwritten(held: Tensor, right: Tensor) -> bool:
    """Whether values are those of an overwritten output, where others are right."""
    if held.is_floating_point():
        return bool(held.isnan().all() and not right.isnan().any())
    return held.dtype is not torch.bool and bool((held == 0).all() and (right != 0).any())


def kept_output(
    outputs: Sequence[GivenOutput], what: str, held: Tensor, right: Tensor
) -> KeptOutput | None:
    """Return the output that one row of values is a view of. `right` is what it should hold.

    Returns None unless the output was overwritten and a row of an earlier output held `right`. The
    latest such output is returned.
    """
    if held.numel() == 0 or not overwritten(held, right):
        return None
    for given in reversed(outputs):
        for name, values in given.output.items():
            if values.shape[1:] != right.shape or values.dtype != right.dtype:
                continue
            same = (bits(values) == bits(right)).flatten(1).all(1).nonzero()
            if len(same):
                value = str(held.flatten()[0].item())
                return KeptOutput(what, value, name, int(same[0]), given.step, given.runner)
    return None


def kept_in_batch(
    outputs: Sequence[GivenOutput], graph: ForwardBatch | None, eager: ForwardBatch | None
) -> KeptOutput | None:
    """Return the output that a row of the graph world's batch is a view of, or None."""
    if graph is None or eager is None:
        return None
    for name, held in graph.spec_info.items():
        right = eager.spec_info.get(name)
        if right is None or right.shape != held.shape or held.dim() < 2:
            continue
        for row in range(len(held)):
            found = kept_output(outputs, f"{name} of row {row}", held[row], right[row])
            if found is not None:
                return found
    return None
