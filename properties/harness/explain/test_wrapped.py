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
        (torch.tensor([100_005, -1, 7]), None),
        (torch.tensor([-40_000]), None),
        (torch.tensor([-31_067.0]), None),
    ],
)
def test_a_wrapped_slot_number_is_told_from_other_values(value: Any, right: str | None) -> None:
    look = _Wrapped(SLOTS)
    look(sys._getframe(), 1, None)
    given = None if look.found is None else look.found[0].right
    assert given == right


def test_the_last_bits_of_slot_numbers_are_found_in_a_wide_array() -> None:
    look, numbers = _Wrapped(SLOTS), torch.tensor([100_005, 100_017])
    look(sys._getframe(), 1, numbers)
    assert look.found is None
    look(sys._getframe(), 1, torch.tensor([100_005 % 2**16, 5]))
    assert look.found is None
    look(sys._getframe(), 1, numbers % 2**16)
    assert look.found is not None
    assert (look.found[0].value, look.found[0].right) == (str(100_005 % 2**16), "100005")
