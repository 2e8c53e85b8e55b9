"""The table of stand-ins for sglang, in the order of their installation."""

from collections.abc import Sequence

from paritybit.drive.stand_ins.graphs import stand_in_for_graphs, use_runner_of_cuda
from paritybit.drive.stand_ins.host import stand_in_for_host_copies
from paritybit.drive.stand_ins.installing import StandIn
from paritybit.drive.stand_ins.kernels import quicken_kernels
from paritybit.drive.stand_ins.layers import (
    stand_in_for_attention,
    stand_in_for_convolutions,
    stand_in_for_experts,
    stand_in_for_layers,
    stand_in_for_softcap,
)
from paritybit.drive.stand_ins.lora import stand_in_for_lora
from paritybit.drive.stand_ins.packages import stand_in_for_packages
from paritybit.drive.stand_ins.speculation import (
    overlap_as_on_cuda,
    stand_in_for_trees,
    use_runners_of_cuda,
)
from paritybit.drive.stand_ins.weights import stand_in_for_weights
from paritybit.engines.graphs import unpin_memory

ANYWHERE = (
    StandIn("packages", "they are not installed and never used here", stand_in_for_packages),
)
"""Stand-ins for every device, before the engine is imported."""

ON_A_CPU: Sequence[StandIn] = (
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
    StandIn("pinned memory: any memory", "a CPU can pin none", unpin_memory),
    StandIn(
        "random weights: larger ones, which differ from layer to layer",
        "with the engine's own nearly all tokens are equally likely, and layers are alike",
        stand_in_for_weights,
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
        "short convolutions: torch over the states they are given",
        "Triton's interpreter takes a second for each step",
        stand_in_for_convolutions,
    ),
    StandIn(
        "the arithmetic of LoRA's kernels: torch over the segments they are given",
        "Triton's interpreter takes a second for each step",
        stand_in_for_lora,
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
    StandIn(
        "copies between a KV pool and the host: torch",
        "they are compiled for CUDA",
        stand_in_for_host_copies,
    ),
)
"""Additional stand-ins for a CPU, in order."""
