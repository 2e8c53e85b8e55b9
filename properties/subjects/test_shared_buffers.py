"""Static buffers are shared by name: what runners of one engine have in common, and with what.

Who needs more than is pooled makes a larger buffer, and who came before keeps the smaller one.
"""

import pytest
import torch
from paritybit.subjects.buffers import BufferPool, SharedBufferError, StaticInputs
from paritybit.subjects.contracts import Axis, keep

from properties.support.harness.planting import captured, shared


def test_a_smaller_buffer_of_a_name_is_the_start_of_the_pooled_one(device: str) -> None:
    pool = BufferPool(torch.device(device))
    large = pool.get("ids", (3, 4), torch.int64, 5)
    small = pool.get("ids", (6,), torch.int64, 9)
    assert large.tolist() == [[5] * 4] * 3
    assert small.tolist() == [5] * 6
    assert small.data_ptr() == large.data_ptr()
    small.zero_()
    assert large.flatten().tolist() == [0] * 6 + [5] * 6


def test_a_larger_buffer_of_a_name_becomes_the_pooled_one_and_holders_keep_theirs(
    device: str,
) -> None:
    pool = BufferPool(torch.device(device))
    held = pool.get("ids", (2,), torch.int64, 5)
    larger = pool.get("ids", (4,), torch.int64, 6)
    again = pool.get("ids", (2,), torch.int64, 7)
    assert larger.tolist() == [6] * 4
    assert again.data_ptr() == larger.data_ptr() != held.data_ptr()
    again.zero_()
    assert held.tolist() == [5, 5]


def test_a_name_has_one_dtype(device: str) -> None:
    pool = BufferPool(torch.device(device))
    pool.get("ids", (2,), torch.int64, 0)
    with pytest.raises(SharedBufferError, match=r"ids is shared as torch\.int64, not torch\.int32"):
        pool.get("ids", (2,), torch.int32, 0)


def test_a_stale_tail_may_hold_the_bytes_of_another_runner(device: str) -> None:
    pool, rows = BufferPool(torch.device(device)), (keep("ids", Axis.TOKEN, torch.int64),)
    larger, smaller = (
        StaticInputs(rows, {Axis.TOKEN: bucket}, pool, torch.float32, 8) for bucket in (4, 3)
    )
    larger.populate({"ids": torch.full((4,), 8, device=device)}, padded=False)
    smaller.populate({"ids": torch.full((1,), 1, device=device)}, padded=True)
    assert smaller.buffers["ids"].tolist() == [1, 8, 8]


def test_a_runner_that_keeps_its_buffers_to_itself_shares_none(device: str) -> None:
    """All others of its engine share those of one name."""
    subject, _ = captured(shared(device, "breakable"))
    places: dict[str, list[int]] = {"breakable": [], "others": []}
    for runner in subject.runners.values():
        held = places["breakable" if runner.name == "breakable" else "others"]
        held += [buffer.data_ptr() for buffer in runner.inputs.buffers.values()]
    assert not set(places["breakable"]) & set(places["others"])
    assert len(set(places["others"])) < len(places["others"])
