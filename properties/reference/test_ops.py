"""Every op set keeps the contracts of the op interface.

Knows which op set runs where: torch on the CPU; Triton compiled on CUDA, or else
interpreted in a process of its own. Does not know what is checked: see `op_checks`.
"""

import pytest
import torch
from paritybit.reference.ops import Ops

from properties.reference.op_checks import (
    ALL,
    CHECKS,
    FEW,
    Check,
    run_checks,
)
from properties.support.interpreting import run_interpreted


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_ops_keep_every_contract(check: Check) -> None:
    """The CPU's op set passes each check at all models' widths, in both dtypes."""
    run_checks(Ops(), "cpu", tuple(combination for combination in ALL if combination[0] is check))


@pytest.mark.parametrize("max_keys", [12, 15, 16, 17])
@pytest.mark.parametrize("sunk", [False, True])
def test_a_cpu_reads_no_key_beyond_the_most_that_a_row_may_have(
    max_keys: int, *, sunk: bool
) -> None:
    """Scores are made of whole vectors, in which further keys and the sink have room."""
    generator = torch.Generator().manual_seed(0)
    query, cache = (torch.randn(shape, generator=generator) for shape in ((3, 4, 8), (2, 40, 2, 8)))
    slots = torch.randperm(40, generator=generator)
    sinks = torch.randn(4, generator=generator) if sunk else None
    begin = torch.tensor([0, 3, 7])
    given = Ops().attention(query, cache, begin, begin + max_keys, slots, sinks, max_keys)
    longer = Ops().attention(query, cache, begin, begin + 30, slots, sinks, max_keys)
    assert longer.equal(given)
    for row, first in enumerate(begin.tolist()):
        keys, values = cache[:, slots[first : first + max_keys]].repeat_interleave(2, 2).unbind()
        score = torch.einsum("hd,khd->hk", query[row], keys) * 8**-0.5
        if sinks is not None:
            score = torch.cat([score, sinks[:, None]], 1)
        weight = score.softmax(-1)[:, :max_keys]
        torch.testing.assert_close(given[row], torch.einsum("hk,khd->hd", weight, values))


def test_cuda_ops_keep_every_contract(device: str) -> None:
    """The GPU's op set passes each check: compiled where CUDA is, else interpreted."""
    if device == "cuda":
        from paritybit.reference.cuda_ops import CudaOps  # noqa: PLC0415 - not without CUDA

        run_checks(CudaOps(), device)
        return
    process = run_interpreted("properties.reference.op_checks")
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) == len(FEW) > 0


def test_what_a_kernel_reads_from_its_first_byte_on_must_lie_together() -> None:
    """A view of one element that is repeated has the right shape, and a kernel reads beyond it."""
    ops, rows = Ops(), torch.zeros(3, 4)
    right, wrong = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64).expand(3)
    cache, query = torch.zeros(2, 5, 1, 4), torch.zeros(3, 1, 4)

    def refused(run: object, *words: object) -> None:
        assert callable(run)
        with pytest.raises(ValueError, match=r"of shape \[3\] that is not contiguous"):
            run(*words)

    refused(ops.store_rows, rows, wrong, rows)
    refused(ops.store_kv, cache, wrong, torch.int64, query, query)
    refused(ops.attention, query, cache, right, wrong, right, None, 1)
