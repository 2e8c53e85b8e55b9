"""live_inputs of an engine that says what a batch brings for its static inputs."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.property import judge
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.observation import Observation

from properties.support.harness.observations import observation

LIVE_INPUTS = PROPERTIES["live_inputs"]


def of_an_engine() -> Observation:
    """Return a right step of an engine with three static inputs, each larger than the batch's."""
    found = observation()
    assert found.replay is not None
    given = {
        "positions": torch.tensor([5, 6]),
        "mrope_positions": torch.tensor([[5, 6]] * 3),
        "seq_lens": torch.tensor([6, 7]),
        "topk_p": torch.tensor([[0.5, 0.25], [0.75, 0.0]]),
    }
    static = {
        "positions": torch.tensor([5, 6, 0, 9]),
        "mrope_positions": torch.tensor([[5, 6, 9, 9]] * 3),
        "seq_lens": torch.tensor([6, 7, 1, 1], dtype=torch.int32),
        "topk_p": torch.tensor([[0.5, 0.25], [0.75, 0.0], [9.0, 9.0]]),
        "never_brought": torch.tensor([9]),
    }
    return replace(found, static=static, replay=replace(found.replay, given=given))


def test_live_parts_that_hold_what_the_batch_brings_violate_nothing_whatever_tails_hold() -> None:
    assert judge([LIVE_INPUTS], of_an_engine()) == ()


def stale(found: Observation) -> None:
    """Leave an element of an earlier batch."""
    found.static["positions"][1] = 8


def stale_section(found: Observation) -> None:
    """Leave an element of one section of the multimodal positions."""
    found.static["mrope_positions"][2, 0] = 8


def stale_row(found: Observation) -> None:
    """Leave an element of a row."""
    found.static["topk_p"][1, 1] = 0.5


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (stale, "positions[1] is 8; the batch needs 6"),
        (stale_section, "mrope_positions[2, 0] is 8; the batch needs 5"),
        (stale_row, "topk_p[1, 1] is 0.5; the batch needs 0.0"),
    ],
)
def test_an_element_that_is_not_what_the_batch_brings_is_named(
    spoil: Callable[[Observation], None], said: str
) -> None:
    found = of_an_engine()
    spoil(found)
    (violation,) = judge([LIVE_INPUTS], found)
    assert said in violation.message


def with_static(name: str, held: torch.Tensor) -> Observation:
    """Return a right step of an engine but for one static input."""
    found = of_an_engine()
    return replace(found, static={**found.static, name: held})


def test_an_input_of_another_dtype_is_named_unless_it_holds_lengths() -> None:
    narrow = of_an_engine().static["positions"].to(torch.int32)
    (violation,) = judge([LIVE_INPUTS], with_static("positions", narrow))
    assert "positions is torch.int32; the batch has torch.int64" in violation.message


def test_an_input_with_less_room_than_the_batch_needs_is_named() -> None:
    (violation,) = judge([LIVE_INPUTS], with_static("positions", torch.tensor([5])))
    assert "has room for [1]; the batch needs [2]" in violation.message
