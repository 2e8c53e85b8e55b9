"""Installs the stand-ins in an engine's process, in the order in which they are needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paritybit.drive.stand_ins.graphs import stand_in_for_graphs, use_runner_of_cuda
from paritybit.drive.stand_ins.kernels import quicken_kernels
from paritybit.drive.stand_ins.layers import (
    stand_in_for_attention,
    stand_in_for_experts,
    stand_in_for_layers,
    stand_in_for_softcap,
)
from paritybit.drive.stand_ins.packages import stand_in_for_packages
from paritybit.drive.stand_ins.speculation import (
    overlap_as_on_cuda,
    stand_in_for_trees,
    use_runners_of_cuda,
)
from paritybit.watch import journal


@dataclass(frozen=True)
class StandIn:
    """What is replaced, why, and what replaces it. `install` says what it replaced, if it varies.

    One that replaced nothing returns an empty text.
    """

    what: str
    why: str
    install: Callable[[], str | None]


ANYWHERE = (
    StandIn("packages", "they are not installed and never used here", stand_in_for_packages),
)
"""What every device needs, before the engine is imported."""

ON_A_CPU = (
    StandIn(
        "Triton's interpreter: numpy for the engine's index kernels, compared with it at first",
        "it takes most of the time of a step",
        quicken_kernels,
    ),
    StandIn(
        "CUDA graphs, streams and events: a tape of torch ops and of launches of interpreted "
        "kernels, replayed over the same tensors",
        "a CPU has none",
        stand_in_for_graphs,
    ),
    StandIn(
        "compiled layers: the engine's own torch implementations (forward_native)",
        "they are compiled for CUDA",
        stand_in_for_layers,
    ),
    StandIn(
        "the arithmetic of the Triton backend's attention: torch over the lists it is given",
        "Triton's interpreter takes a second for each step",
        stand_in_for_attention,
    ),
    StandIn(
        "the kernel that bounds logits: torch",
        "Triton's interpreter has no tanh of libdevice",
        stand_in_for_softcap,
    ),
    StandIn(
        "the choice of graph runner for decoding: the one of CUDA",
        "the engine has another for a CPU",
        use_runner_of_cuda,
    ),
    StandIn(
        "the choice of graph runners for drafting: those of CUDA",
        "the engine has none for a CPU",
        use_runners_of_cuda,
    ),
    StandIn(
        "the rule that batches with drafts do not overlap: none",
        "the engine has it for a CPU alone",
        overlap_as_on_cuda,
    ),
    StandIn(
        "the experts' torch implementation: one step of a graph",
        "it reads how many tokens each expert has on the host",
        stand_in_for_experts,
    ),
    StandIn(
        "the kernels that build and verify trees of drafts: Python",
        "they are compiled for CUDA",
        stand_in_for_trees,
    ),
)
"""What a CPU needs besides, in this order."""


def install(device: str) -> None:
    """Install what the device lacks, and report it. Must run before the engine is imported."""
    if device == "cpu":
        torch.set_num_threads(1)  # Tiny tensors: more threads only wait for one another.
    put((*ANYWHERE, *(ON_A_CPU if device == "cpu" else ())))


def put(stand_ins: Sequence[StandIn]) -> None:
    """Install some stand-ins in their order, and report each."""
    lines = journal.of_process()
    for one in stand_ins:
        detail = one.install()
        if lines is not None and detail != "":
            lines.stand_in(f"{one.what}: {detail}" if detail else one.what, one.why)
