"""What a gate leaves that nobody opens, and one that stands open: run interpreted."""

import torch
from paritybit.reference.kernels.gate import gate_kernel

for opened, spins in ((0, 20), (2, 20)):
    cells = torch.tensor([opened, 3, 0], dtype=torch.int32)
    gate_kernel[(1,)](cells, 2, spins)
    print(cells.tolist())  # noqa: T201
