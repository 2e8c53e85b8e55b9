"""A kernel that waits for the host: device work behind it begins when the host says so."""

# mypy: disable-error-code="no-untyped-def"
# The line above is for the kernel: Triton's values have no Python types.

import triton.language as tl

from reference.kernels.launch import jit


@jit
def gate_kernel(opened, ticket, most_spins):
    """Spin until `opened` [1], int32 in pinned host memory, is at least `ticket`, or give up."""
    spins = 0
    while (tl.load(opened, volatile=True) < ticket) & (spins < most_spins):
        spins += 1
