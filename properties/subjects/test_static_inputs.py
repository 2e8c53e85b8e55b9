"""Static inputs as data: what the padding resets, what it leaves, and what a bug changes.

The contracts of the runners are held against the table of `support.runners`; what is made of
a contract is tested under the scheme that has most rows, for a scheme only leaves rows out.
"""

from collections.abc import Callable, Mapping

import pytest
import torch
from paritybit.subjects.buffers import BufferPool, StaticInputs
from paritybit.subjects.contracts import (
    HIDDEN,
    TOPK,
    Axis,
    Contract,
    Policy,
    StaticInput,
    keep,
    reset,
)
from paritybit.subjects.engine import contract
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.subjects.runners import EXPECTED, PRESET
from properties.support.subjects.static_inputs import ExpectedInput, stale

T, B, M = Axis.TOKEN, Axis.REQUEST, Axis.MROPE
WIDEST = {T: 6, B: 5, Axis.DRAFT_SLOT: 12, Axis.MASK: 20}
LIVE = {T: 4, B: 2, Axis.DRAFT_SLOT: 6, Axis.MASK: 9}
WIDTHS = {HIDDEN: 3, TOPK: 2}
"""Of a hidden state."""

each_runner = pytest.mark.parametrize("runner", RUNNERS)


def as_expected(row: StaticInput, *, populated: bool) -> ExpectedInput:
    """Return a row of a contract in the words of the table."""
    return ExpectedInput(
        row.axis,
        row.dtype,
        row.value if row.policy is Policy.RESET else None,
        row.value if row.allocated is None else row.allocated,
        row.width,
        row.host,
        populated,
        None if row.schemes == frozenset(LocationScheme) else next(iter(row.schemes)),
    )


@each_runner
def test_the_rows_of_a_contract_are_those_of_the_table(runner: str) -> None:
    for scheme in LocationScheme:
        wanted = EXPECTED[runner].inputs_under(scheme)
        found = {
            row.name: as_expected(row, populated=row.name in wanted and wanted[row.name].populated)
            for row in contract(RUNNERS[runner], scheme)
        }
        assert found == wanted, scheme


def length(row: StaticInput, extents: Mapping[Axis, int]) -> int:
    """Return how long a row is along its axis."""
    return {**extents, M: extents[T], Axis.SCALAR: 1}[row.axis]


def made(rows: Contract, device: str) -> StaticInputs:
    """Return new static inputs."""
    return StaticInputs(rows, WIDEST, BufferPool(torch.device(device)), torch.bfloat16, WIDTHS)


def used(rows: Contract, device: str) -> StaticInputs:
    """Return static inputs whose every element holds what an earlier batch left."""
    inputs = made(rows, device)
    for row in rows:
        inputs.buffers[row.name].fill_(stale(row.dtype))
    return inputs


def live_values(rows: Contract, device: str) -> dict[str, Tensor]:
    """Return live values for each row, each element its own: 4, 5, … or False."""
    values = {}
    for row in rows:
        shape = row.shape(LIVE, WIDTHS)
        counted = torch.arange(4, 4 + torch.Size(shape).numel()).view(shape)
        value = torch.zeros(shape) if row.dtype is torch.bool else counted
        values[row.name] = value.to("cpu" if row.host else device, row.dtype or torch.bfloat16)
    return values


def part(row: StaticInput, buffer: Tensor, first: int, last: int | None) -> list[float]:
    """Return what a buffer holds from `first` on, along its row's axis, flat."""
    return (buffer.T if row.axis is M else buffer)[first:last].flatten().tolist()


Tails = Callable[[ExpectedInput], bool]
"""Whether a padding branch resets an input, if it ever does."""

PADDED: Mapping[str, tuple[dict[str, bool], Tails]] = {
    "padded": ({"padded": True}, lambda row: True),
    "padded, on the host too": ({"padded": True, "padded_on_host": True}, lambda row: True),
    "padded, not on the host": (
        {"padded": True, "padded_on_host": False},
        lambda row: not row.host,
    ),
    "full": ({"padded": False}, lambda row: False),
    "full, but for the host": ({"padded": False, "padded_on_host": True}, lambda row: row.host),
}
"""How a batch may be padded, and what it resets: host rows have a condition of their own."""


@each_runner
def test_populating_copies_every_live_value_and_resets_what_the_table_says(
    runner: str, device: str
) -> None:
    rows, wanted = contract(RUNNERS[runner], PRESET), EXPECTED[runner].inputs_under(PRESET)
    for padding, (arguments, resets) in PADDED.items():
        inputs, values = used(rows, device), live_values(rows, device)
        inputs.populate(values, **arguments)
        for row in rows:
            live, buffer, name = length(row, LIVE), inputs.buffers[row.name], (padding, row.name)
            assert part(row, buffer, 0, live) == part(row, values[row.name], 0, None) != [], name
            tail, rest = wanted[row.name].tail, part(row, buffer, live, None)
            left = stale(row.dtype) if tail is None or not resets(wanted[row.name]) else tail
            assert set(rest) == (set() if row.axis is Axis.SCALAR else {left}), name


def of_requests(rows: Contract, bucket: int, device: str) -> StaticInputs:
    """Return static inputs of a bucket of requests with a token each."""
    extents, pool = {T: bucket, B: bucket}, BufferPool(torch.device(device))
    return StaticInputs(rows, extents, pool, torch.float32, WIDTHS)


def test_what_is_filled_once_is_filled_at_allocation_and_stale_ever_after(device: str) -> None:
    rows = (StaticInput("lens", B, torch.int32, Policy.FILL_ONCE, value=9),)
    inputs = of_requests(rows, 4, device)
    lens = inputs.buffers["lens"]
    assert lens.tolist() == [9, 9, 9, 9]
    for live, wanted in ((3, [1, 1, 1, 9]), (1, [2, 1, 1, 9])):
        values = torch.full((live,), wanted[0], dtype=torch.int32, device=device)
        inputs.populate({"lens": values}, padded=True)
        assert lens.tolist() == wanted


def test_conversions_are_done_and_recorded(device: str) -> None:
    rows = (
        keep("narrow", T, torch.int32),
        keep("wide", T, torch.int64),
        keep("same", T, torch.int64),
        reset("host", B, torch.int32, host=True),
    )
    inputs = of_requests(rows, 4, device)
    values = torch.tensor([5, 6], device=device)
    live = {"narrow": values, "wide": values.int(), "same": values, "host": values.cpu()}
    inputs.populate(live, padded=True)
    assert inputs.conversions == {
        ("narrow", torch.int64, torch.int32),
        ("wide", torch.int32, torch.int64),
        ("host", torch.int64, torch.int32),
    }
    assert all(inputs.buffers[row.name][:2].tolist() == [5, 6] for row in rows)
