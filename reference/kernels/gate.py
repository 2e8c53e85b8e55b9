"""A kernel that waits for the host: device work behind it begins when the host says so."""

# mypy: disable-error-code="no-untyped-def"
# The line above is for the kernel: Triton's values have no Python types.

import triton.language as tl
from paritybit.reference.kernels.launch import jit


@jit
def gate_kernel(cells, ticket, most_spins):
    """Spin until the first of `cells` [3], int32 in pinned host memory, is at least `ticket`.

    The second is the last ticket that was given. A gate that gives up lets all pass that were, as
    the host would, and is counted in the third.
    """
    spins = 0
    while (tl.load(cells, volatile=True) < ticket) & (spins < most_spins):
        spins += 1
    if spins == most_spins:
        tl.store(cells, tl.load(cells + 1, volatile=True))
        tl.store(cells + 2, tl.load(cells + 2, volatile=True) + 1)
