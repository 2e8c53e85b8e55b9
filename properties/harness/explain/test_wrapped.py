"""A slot number that fewer bits made negative is found, and nothing else is taken for one."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from paritybit.harness.explain.wrapped import _Wrapped

SLOTS = range(100_004, 100_084)


@pytest.mark.parametrize(
    ("value", "right"),
    [
        (torch.tensor([100_005, 3]).to(torch.int16), "100005"),
        (np.array([100_060]).astype(np.int16), "100060"),
        (torch.tensor([100_010]).to(torch.int8), "100010"),
        (torch.tensor([100_005 % 2**16, 5]), "100005"),
        (torch.tensor([100_005, -1, 7]), None),
        (torch.tensor([100_005 % 2**8, 5]), None),
        (torch.tensor([-40_000]), None),
        (torch.tensor([-31_067.0]), None),
    ],
)
def test_a_wrapped_slot_number_is_told_from_other_values(value: Any, right: str | None) -> None:
    look = _Wrapped(SLOTS)
    look(sys._getframe(), 1, None)
    given = None if look.found is None else look.found[0].right
    assert given == right
