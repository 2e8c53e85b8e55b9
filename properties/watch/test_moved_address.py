"""A static input of another dtype than the engine gives is found, captured or not."""

import pytest
import torch

from paritybit.watch.checks import moved_address
from paritybit.watch.facts import Forward, StaticInput
from paritybit.watch.observations import Captured, Inputs


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(("dtype", "number"), [(None, 0), (torch.int64, 0), (torch.int32, 1)])
def test_an_input_has_the_dtype_that_the_engine_gives_it(
    captured: bool, dtype: torch.dtype | None, number: int
) -> None:
    held = torch.zeros(4, dtype=torch.int64)
    static = StaticInput("out_cache_loc_swa", held, 2, 4, dtype=dtype)
    before = {static.name: Captured(held.data_ptr(), held.dtype, tuple(held.shape), held.clone())}
    given = Inputs(1, Forward("decode", ()), "b", [static], before if captured else {})
    found = list(moved_address.judge(given))
    assert len(found) == number
    assert all("is int64, but the engine gives int32" in one.text for one in found)
