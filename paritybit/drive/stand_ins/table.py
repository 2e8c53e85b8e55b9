"""Installs the stand-ins in an engine's process, in the order in which they are needed."""

import torch

from paritybit.drive.stand_ins.graphs import stand_in_for_graphs, use_runner_of_cuda
from paritybit.drive.stand_ins.layers import stand_in_for_layers
from paritybit.drive.stand_ins.packages import stand_in_for_packages


def install(device: str) -> None:
    """Install what the device lacks. Must run before the engine is imported."""
    stand_in_for_packages()
    if device == "cpu":
        torch.set_num_threads(1)  # Tiny tensors: more threads only wait for one another.
        stand_in_for_graphs()
        use_runner_of_cuda()
        stand_in_for_layers()
