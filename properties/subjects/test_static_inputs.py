"""Static inputs as data: what the padding resets, and what it keeps."""

import pytest
import torch
from paritybit.harness.checks.static_inputs import FILLS, TOKEN_COUNTS
from paritybit.subjects.buffers import BufferPool, StaticInputs
from paritybit.subjects.contracts import Axis, Contract, Policy, keep, reset
from paritybit.subjects.runners import RUNNERS

ROWS: Contract = (
    keep("kept", Axis.TOKEN, torch.int32),
    reset("reset", Axis.TOKEN, torch.int64, 7),
    reset("on_host", Axis.REQUEST, torch.int32, 5, host=True),
    keep("rows", Axis.TOKEN, torch.int64, width=3),
)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_fill_values_of_a_contract_are_those_that_the_checks_expect(runner: str) -> None:
    fills = {
        row.name: row.value if row.policy is Policy.RESET else None
        for row in RUNNERS[runner].rows
        if row.name not in TOKEN_COUNTS
    }
    assert fills == FILLS[runner]


def made(device: str) -> StaticInputs:
    """Return static inputs for four requests with a token each."""
    pool = BufferPool(torch.device(device))
    return StaticInputs(ROWS, {Axis.TOKEN: 4, Axis.REQUEST: 4}, pool, torch.float32, 8)


@pytest.mark.parametrize(
    ("padded", "on_host", "tails"),
    [
        (True, None, {"reset": 7, "on_host": 5}),
        (True, False, {"reset": 7}),
        (False, True, {"on_host": 5}),
        (False, None, {}),
    ],
)
def test_populating_copies_live_values_and_resets_padding(
    padded: bool, on_host: bool | None, tails: dict[str, int], device: str
) -> None:
    inputs = made(device)
    for buffer in inputs.buffers.values():
        buffer.fill_(3)
    values = torch.tensor([1, 2], device=device)
    live = {row.name: values.cpu() if row.host else values for row in ROWS}
    live["rows"] = values[:, None].expand(-1, 3)
    inputs.populate(live, padded=padded, padded_on_host=on_host)
    for row in ROWS:
        columns = inputs.buffers[row.name].view(4, -1).T
        tail = tails.get(row.name, 3)
        assert columns.tolist() == [[1, 2, tail, tail]] * len(columns)


def test_a_buffer_is_filled_when_it_is_allocated(device: str) -> None:
    buffers = made(device).buffers
    filled = {"kept": 0, "reset": 7, "on_host": 5, "rows": 0}
    assert {name: set(buffer.flatten().tolist()) for name, buffer in buffers.items()} == {
        name: {value} for name, value in filled.items()
    }
