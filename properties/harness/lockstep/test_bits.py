"""Bits are compared as integers, on whichever device: no two patterns are taken for one."""

import pytest
import torch
from paritybit.harness.lockstep.bits import bits, unequal

VALUES = [0.0, -0.0, 1.0, float("inf"), float("nan")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_two_patterns_differ_and_each_equals_itself(dtype: torch.dtype, device: str) -> None:
    """NaN equals itself, and -0.0 is not 0.0."""
    values = torch.tensor(VALUES, dtype=dtype, device=device)
    assert len(set(bits(values).tolist())) == len(VALUES)
    one, other = values[:, None].expand(-1, len(VALUES)), values.expand(len(VALUES), -1)
    same = torch.eye(len(VALUES), dtype=torch.bool, device=device)
    assert unequal(one, other).equal(~same)
