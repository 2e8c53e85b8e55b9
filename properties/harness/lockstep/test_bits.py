"""Bits are compared as integers, on whichever device: no two patterns are taken for one."""

import pytest
import torch
from paritybit.harness.lockstep.bits import bits, differ, unequal

VALUES = [0.0, -0.0, 1.0, float("inf"), float("nan")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_two_patterns_differ_and_each_equals_itself(dtype: torch.dtype, device: str) -> None:
    """NaN equals itself, and -0.0 is not 0.0."""
    values = torch.tensor(VALUES, dtype=dtype, device=device)
    assert len(set(bits(values).tolist())) == len(VALUES)
    one, other = values[:, None].expand(-1, len(VALUES)), values.expand(len(VALUES), -1)
    same = torch.eye(len(VALUES), dtype=torch.bool, device=device)
    assert unequal(one, other).equal(~same)


def test_a_bit_of_any_pair_of_any_dtype_is_told(device: str) -> None:
    """Pairs of one dtype are compared end to end, and each dtype by itself; a NaN equals itself."""
    parts = [
        torch.full((2, 3), float("nan"), device=device),
        torch.zeros(4, device=device),
        torch.zeros((2, 2), dtype=torch.bfloat16, device=device),
        torch.arange(5, device=device),
        torch.arange(5, dtype=torch.int32, device=device),
        torch.tensor([True, False], device=device),
    ]
    assert not differ((part, part.clone()) for part in parts)
    for place, part in enumerate(parts):
        changed = [one.clone() for one in parts]
        last = changed[place].view(-1)[-1:]
        last.copy_(-last if part.is_floating_point() else last == 0)
        assert differ(zip(parts, changed, strict=True))
