"""A kernel that waits for the host. Device work queued after it starts when the host opens it."""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import triton.language as tl
from paritybit.reference.kernels.launch import jit


@jit
def gate_kernel(cells, ticket, most_spins):
    """Spin until the first of `cells` [3], int32 in pinned host memory, is at least `ticket`.

    The second cell is the last ticket issued. A gate that gives up after `most_spins` sets the
    first cell to it, which opens every gate issued so far, and increments the third cell.
    """
    spins = 0
    while (tl.load(cells, volatile=True) < ticket) & (spins < most_spins):
        spins += 1
    if spins == most_spins:
        tl.store(cells, tl.load(cells + 1, volatile=True))
        tl.store(cells + 2, tl.load(cells + 2, volatile=True) + 1)
