"""Every op set keeps the contracts of the op interface.

Knows which op set runs where: torch on the CPU; Triton compiled on CUDA, or else
interpreted in a process of its own. Does not know what is checked: see `op_checks`.
"""

import pytest
from paritybit.reference.ops import Ops

from properties.reference.op_checks import (
    CHECKS,
    FEW,
    ON_CPU,
    ON_CUDA,
    Check,
    run_checks,
)
from properties.support.interpreting import run_interpreted


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_ops_keep_every_contract(check: Check) -> None:
    """The CPU's op set passes each check at all models' widths, in both dtypes."""
    run_checks(Ops(), "cpu", tuple(one for one in ON_CPU if one[0] is check))


def test_cuda_ops_keep_every_contract(device: str) -> None:
    """The GPU's op set passes each check: compiled where CUDA is, else interpreted."""
    if device == "cuda":
        from paritybit.reference.cuda_ops import CudaOps  # noqa: PLC0415 - not without CUDA

        run_checks(CudaOps(), device, ON_CUDA)
        return
    process = run_interpreted("properties.reference.op_checks")
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) == len(FEW) > 0
