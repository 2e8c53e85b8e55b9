"""Whose a slot is: of the request that holds a token there, or that the forward writes there."""

import pytest
from paritybit.harness.lockstep.requests import Request, owner_of
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Span
from paritybit.reference.config import Kind

OWNER = Owner(serial=7, row=2, state_slot=3, length=3, page_size=4, full_pages=(5,), swa_pages=(6,))
SPAN = Span(
    row=2,
    token_row=2,
    begin=3,
    end=4,
    full_slots=(23,),
    swa_slots=(27,),
    mrope_delta=0,
    track_index=0,
    tracked=False,
    encoder_len=0,
)
"""The next token of the request, in the last slot of its page."""


@pytest.mark.parametrize("name", ["mrope_delta", "encoder_len"])
def test_inputs_of_three_requests_that_come_together_do_not_ascend(name: str) -> None:
    """So an engine that sorts them differs from one that does not."""
    values = [getattr(Request(serial, 1, 1, 0), name) for serial in range(20)]
    for first in range(len(values) - 2):
        some = values[first : first + 3]
        assert sorted(some) != some


def test_a_slot_that_holds_a_token_is_its_request_s() -> None:
    assert owner_of(Kind.FULL, 22, (), (OWNER,)) == "request 7"
    assert owner_of(Kind.SWA, 24, (), (OWNER,)) == "request 7"


def test_a_slot_that_is_being_written_is_its_request_s_already() -> None:
    assert owner_of(Kind.FULL, 23, (SPAN,), (OWNER,)) == "request 7"
    assert owner_of(Kind.SWA, 27, (SPAN,), (OWNER,)) == "request 7"
    assert owner_of(Kind.FULL, 23, (), (OWNER,)) == "nobody"


def test_a_slot_of_the_other_sub_pool_is_nobody_s() -> None:
    assert owner_of(Kind.SWA, 23, (SPAN,), (OWNER,)) == "nobody"
    assert owner_of(Kind.FULL, 27, (SPAN,), (OWNER,)) == "nobody"
