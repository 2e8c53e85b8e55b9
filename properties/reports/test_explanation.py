"""Tests of a finding's explanation on the page: its proof, its static inputs and its slots."""

import re
from typing import Any

import pytest
from paritybit.harness.explain.facts import (
    NOBODY,
    SlotTaken,
)
from paritybit.harness.records.schema import Contract, ContractRow, Record
from paritybit.reports.drawings import slot_map, static_inputs
from paritybit.reports.explanation import OUTCOMES, describe

from properties.support.reports.pages import card_of, words_of
from properties.support.reports.records import (
    explanation,
    green,
    static_input,
    sub_pool,
    swa_pad_finding,
    with_finding,
)

STEPS = swa_pad_finding().timeline
ANCHOR = "bug-swa_pad-decode-generated"


def explained(**changes: Any) -> Record:
    """Return a green record whose first hunt has an explanation with these changes."""
    return with_finding(green(), 0, explanation=explanation(**changes))


def test_the_card_tells_the_proof_in_order_and_what_is_to_blame() -> None:
    message = words_of(card_of(explained(), ANCHOR))
    places = [message.index(sentence) for sentence in explanation().proof]
    assert places == sorted(places)
    blamed = "static inputs, in decode: out_cache_loc_swa[1] = 9, left there by step 2, decode"
    assert f"Cause: {blamed}, row 1 (request 1); expected: 0." in message
    assert f"capture {OUTCOMES['violated']}" in message
    assert f"static inputs {OUTCOMES['holds']}" in message


@pytest.mark.parametrize(
    ("part", "links"), [("suspects", 2), ("slot", 1), ("difference", 1), ("taken", 0)]
)
def test_an_explanation_may_lack_a_part(part: str, links: int) -> None:
    lacking = {part: () if part == "suspects" else None}
    views = describe(explanation(), STEPS), describe(explanation(**lacking), STEPS)
    assert views[0] is not None and views[1] is not None
    assert len(views[0].chain) - len(views[1].chain) == links
    assert "Cause: " in card_of(explained(**lacking), ANCHOR)


def test_each_section_of_a_static_input_has_a_live_head() -> None:
    mrope = static_input("mrope_positions", [6, 0] * 3, [3, 2] * 3, axis="3 x token")
    table = static_inputs.tabulate(explanation(static_inputs=(mrope,)), STEPS)
    assert table is not None
    kinds = [element.kinds for element in table.inputs[0].elements]
    assert kinds == ["live", "padded"] * 3


def test_a_map_draws_each_slot_once_in_the_state_of_its_owner() -> None:
    pool = sub_pool("swa", {3: 0, 8: 0, 9: 1}, 40, written=(8, 9), differs=(9,), page_size=4)
    drawn = slot_map.lay_out(pool)
    boxes = {path.name: path.value.count("M") for path in drawn.paths}
    assert boxes == {"reserved": 4, "live": 2, "parked": 1, "written": 2, "differs": 1}
    assert [number.text for number in drawn.owners["live"]] == ["0", "0"]
    assert [number.text for number in drawn.owners["parked"]] == ["1"]
    assert [row.text for row in drawn.rows] == ["0", "16", "32"]
    assert "differing: 9 (request 1’s)" in drawn.message
    assert pool.owners.count(NOBODY) == 37


@pytest.mark.parametrize("size", [1, 15, 16, 17, 80])
def test_a_map_stays_within_its_frame_and_no_two_slots_share_a_box(size: int) -> None:
    pool = sub_pool("full", dict.fromkeys(range(size), 0), size)
    drawn = slot_map.lay_out(pool)
    (live,) = [path.value for path in drawn.paths if path.name == "live"]
    corners = [(int(x), int(y)) for x, y in re.findall(r"M(\d+) (\d+)", live)]
    assert len(set(corners)) == len(corners) == size
    assert all(x + slot_map.CELL <= drawn.width for x, _ in corners)
    assert all(y + slot_map.CELL <= drawn.height + 1 for _, y in corners)


def test_the_page_has_a_map_of_the_sub_pool_that_a_slot_was_taken_from_and_of_no_other() -> None:
    markup = card_of(explained(), ANCHOR)
    assert len(explanation().slots) == 4
    assert re.findall(r"<figcaption><strong>([^<]*)", markup) == ["target, swa"]
    assert markup.count('class="wrong"') == markup.count('class="right"') == 1
    assert "used by mistake: 9; expected: 0" in words_of(markup)


def test_the_slots_taken_are_those_of_the_sub_pool_that_they_lie_in() -> None:
    taken = SlotTaken("draft", "full", 0, 2, 30, None)
    view = describe(explanation(taken=taken), STEPS)
    assert view is not None
    (drawn,) = view.slots
    assert drawn.name == "draft, full"
    assert drawn.wrong
    assert not drawn.right
    assert drawn.message.endswith("used by mistake: 30; expected: none")


def test_a_tail_that_was_not_refilled_is_a_fault_by_the_right_contract_and_comes_first() -> None:
    """The broken runner's own row says `keep`, and is not believed."""
    kept = static_input("out_cache_loc_swa", [8, 9, 5], [3, 2, 1], padding="keep", stale=(1,))
    ids = static_input("input_ids", [41, 17], [3, 2], padding="keep")
    rows = (ContractRow("out_cache_loc_swa", "token", "int32", "fill 0"),)
    contract = Contract("decode", "preset", rows)
    view = describe(explanation(static_inputs=(ids, kept)), STEPS, contract)
    assert view is not None
    assert view.table is not None
    assert [row.name for row in view.table.first] == ["out_cache_loc_swa"]
    assert [row.name for row in view.table.others] == ["input_ids"]
    assert view.table.first[0].fault == (
        "its contract fills padding with 0 at every padded replay, but elements 1, 2 "
        "were not refilled"
    )


@pytest.mark.parametrize(
    ("padding", "left_by"), [("fill 0", [3, 3]), ("fill once", [3, -1]), ("keep", [3, 2])]
)
def test_a_tail_that_is_as_its_padding_says_is_no_fault(padding: str, left_by: list[int]) -> None:
    row = static_input("positions", [6, 0], left_by, padding=padding)
    table = static_inputs.tabulate(explanation(static_inputs=(row,)), STEPS)
    assert table is not None
    assert [row.fault for row in table.inputs] == [""]
