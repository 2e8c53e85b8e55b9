"""Tests of a finding's explanation on the page: its proof, its static inputs and its slots."""

import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from paritybit.harness.explain.facts import (
    NOBODY,
    BakedIn,
    CodeSite,
    GivenValue,
    Holding,
    How,
    KeptOutput,
    ListFault,
    Situation,
    SlotTaken,
    TableCell,
    UncapturedRun,
    Writer,
)
from paritybit.harness.records.schema import Contract, ContractRow, Record
from paritybit.reports.blame import HOW
from paritybit.reports.drawings import slot_map, static_inputs
from paritybit.reports.explanation import UNCAPTURED_RUN, ExplanationView, describe

from properties.support.reports.pages import card_of, words_of
from properties.support.reports.records import (
    CAPTURED_INDEX,
    cause,
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


def described(**changes: Any) -> ExplanationView:
    """Return what is told of an explanation whose cause has these changes."""
    found = describe(explanation(cause=cause(**changes)), STEPS)
    assert found is not None
    return found


def test_the_card_tells_the_proof_in_order_and_what_is_to_blame() -> None:
    message = words_of(card_of(explained(), ANCHOR))
    places = [message.index(sentence) for sentence in explanation().proof]
    assert places == sorted(places)
    blamed = "inputs, in decode: out_cache_loc_swa[1] = 9, left there by step 2, decode, row 1"
    assert f"Cause: {blamed} (request 1); expected: 0." in message
    assert UNCAPTURED_RUN["as the graph"] in message


@pytest.mark.parametrize("run", get_args(UncapturedRun))
def test_the_uncaptured_run_is_told_in_words(run: UncapturedRun) -> None:
    record = explained(cause=cause(uncaptured_run=run))
    message = words_of(card_of(record, ANCHOR))
    said = [text for text in UNCAPTURED_RUN.values() if text and text in message]
    assert said == [UNCAPTURED_RUN[run]]


def test_every_way_in_which_an_element_got_its_value_has_its_words() -> None:
    assert HOW.keys() == set(get_args(How))


def test_the_chain_leads_from_the_stale_element_to_the_first_difference() -> None:
    found = described()
    assert [link.name for link in found.chain] == [
        "step 2, decode, row 1 (request 1)",
        "out_cache_loc_swa[1] = 9",
        "target, swa slot 9",
        "store_kv, target, layer 0, swa, K",
    ]
    assert found.chain[1].value == "stale, expected 0"
    assert "padded row 1" in found.chain[-1].value


def test_an_index_that_the_graph_itself_holds_is_told_as_such() -> None:
    found = described(index=CAPTURED_INDEX)
    assert [link.name for link in found.chain[:2]] == ["capture", "slot 9, in no static input"]
    assert found.table is not None
    elements = [element for row in found.table.inputs for element in row.elements]
    assert not any("culprit" in element.kinds for element in elements)


def test_an_index_that_leads_to_another_number_says_so() -> None:
    index = cause().index
    assert index is not None
    found = described(index=replace(index, read=0, stale=False))
    assert found.chain[1].value == "written in this step, expected 0, leads to slot 0"


@pytest.mark.parametrize(
    ("part", "links"),
    [("index", 2), ("slot", 1), ("site", 1), ("difference", 1), ("uncaptured_run", 0)],
)
def test_an_explanation_may_lack_a_part(part: str, links: int) -> None:
    whole = {"site": CodeSite("f", "a.py", "t")}
    assert len(described(**whole).chain) - len(described(**whole | {part: None}).chain) == links
    record = explained(cause=cause(**{part: None}))
    assert "Cause: " in card_of(record, ANCHOR)


FURTHER: dict[str, Any] = {
    "cell": TableCell("req_to_token", (2, 5), 9, 4, since=1),
    "kept": KeptOutput("topk_p of row 0", "nan", "topk_p", 1, 4, "eagle_draft_extend"),
    "given": GivenValue("positions[1]", "3", "4", False, Writer(2, "decode", 1, 1), "copied"),
    "listed": ListFault("swa", 1, "request 0", "is one short"),
    "baked": BakedIn("rotary", 4, "the stride of positions", "[0, 1]", "[4, 1]"),
    "held": Holding("full page 5", "free once", "free 2 times", 2, "finish", "graph", True),
}


@pytest.mark.parametrize(
    ("part", "links"),
    [
        ("cell", [("req_to_token[2, 5] = 9", "since step 1; the eager run has 4")]),
        (
            "kept",
            [
                (
                    "step 4, eagle_draft_extend, output topk_p, row 1",
                    "a view of it was kept as topk_p of row 0, which has been nan since",
                )
            ],
        ),
        (
            "given",
            [
                ("step 2, decode, row 1 (request 1)", "copied from its batch"),
                ("positions[1] = 3", "expected 4"),
            ],
        ),
        ("listed", [("swa keys of row 1, request 0", "is one short")]),
        (
            "baked",
            [
                (
                    "op 4, the stride of positions of rotary",
                    "[0, 1] since the capture; [4, 1] when run eagerly",
                )
            ],
        ),
        (
            "held",
            [("step 2, finish", "before it free once"), ("full page 5", "free 2 times")],
        ),
    ],
)
def test_the_chain_begins_with_what_else_led_there(part: str, links: list[tuple[str, str]]) -> None:
    found = described(**{part: FURTHER[part]})
    assert [(link.name, link.value) for link in found.chain[: len(links)]] == links
    record = explained(cause=cause(**{part: FURTHER[part]}))
    assert links[0][0] in words_of(card_of(record, ANCHOR))


def test_a_finding_without_an_explanation_still_shows_what_was_seen() -> None:
    message = words_of(card_of(with_finding(green(), 0, explanation=None), ANCHOR))
    assert "Step 3 violates" in message
    assert "12 of 32 bits differ" in message
    assert "Cause: " not in message
    assert "Static inputs" not in message


def test_a_build_fault_shows_neither_inputs_nor_slots() -> None:
    record = explained(at=Situation(step=3, runner="decode"), static_inputs=(), slots=())
    message = words_of(card_of(record, ANCHOR))
    assert "Static inputs at" not in message
    assert "Slots after" not in message


def test_the_card_says_at_which_step_inputs_and_slots_are_shown() -> None:
    message = words_of(card_of(explained(), ANCHOR))
    assert "Static inputs at step 3: decode, 1 live of bucket 2" in message
    assert "Slots after step 3: decode, 1 live of bucket 2" in message


def test_each_element_says_whether_it_is_live_stale_and_who_left_it() -> None:
    table = static_inputs.tabulate(explanation(), STEPS)
    assert table is not None
    rows = {row.name: row.elements for row in table.inputs}
    culprit = rows["out_cache_loc_swa"]
    assert [(element.value, element.kinds, element.source) for element in culprit] == [
        ("8", "live", ""),
        ("9", "padded stale culprit", "step 2"),
    ]
    assert [element.source for element in rows["encoder_lens"]] == ["", "capture"]
    assert [element.kinds for element in rows["input_ids"]] == ["live", "padded"]
    assert [(source.name, source.value) for source in table.sources] == [
        ("capture", "never written since"),
        ("step 2", "decode of requests 0, 1"),
    ]


def test_each_section_of_a_static_input_has_a_live_head() -> None:
    mrope = static_input("mrope_positions", [6, 0] * 3, [3, 2] * 3, axis="3 x token")
    table = static_inputs.tabulate(explanation(static_inputs=(mrope,)), STEPS)
    assert table is not None
    kinds = [element.kinds for element in table.inputs[0].elements]
    assert kinds == ["live", "padded"] * 3


def test_the_card_marks_as_many_cells_as_are_stale() -> None:
    markup = card_of(explained(), ANCHOR)
    assert markup.count('<li class="padded stale culprit">9<small>step 2</small></li>') == 1
    assert len(re.findall(r'<li class="[^"]*stale', markup)) == 1
    assert "2 stale." in words_of(markup)


def test_a_long_static_input_says_what_is_not_shown_of_it() -> None:
    long = static_input("custom_mask", [1] * 60, [3] * 60, stale=(55, 2))
    table = static_inputs.tabulate(explanation(static_inputs=(long,)), STEPS)
    assert table is not None
    (row,) = table.inputs
    assert len(row.elements) == static_inputs.MOST_ELEMENTS
    assert row.omitted == f"and {60 - static_inputs.MOST_ELEMENTS} more, 1 of them stale"


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


def test_without_a_slot_to_blame_the_sub_pools_that_differ_are_drawn() -> None:
    nothing: dict[str, Any] = {"slot": None, "difference": None, "index": None}
    markup = card_of(explained(cause=cause(**nothing)), ANCHOR)
    assert re.findall(r"<figcaption><strong>([^<]*)", markup) == ["target, swa"]
    assert 'class="wrong"' not in markup
    same = explained(cause=cause(**nothing), slots=(sub_pool("full", {5: 0}),))
    assert "<figcaption><strong>" not in card_of(same, ANCHOR)


def test_the_slots_taken_are_those_of_the_sub_pool_that_they_lie_in() -> None:
    taken = SlotTaken("draft", "full", 0, 2, 30, None)
    view = described(taken=taken)
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


def test_where_none_is_to_blame_the_stale_come_first_and_without_those_all_are_folded() -> None:
    nothing = cause(index=None, slot=None)
    stale = static_input("input_ids", [41, 17], [3, 2], padding="keep", stale=(1,))
    right = static_input("positions", [6, 0], [3, 3])
    for inputs, first in (((right, stale), ["input_ids"]), ((right,), [])):
        found = explanation(cause=nothing, static_inputs=inputs)
        table = static_inputs.tabulate(found, STEPS)
        assert table is not None
        assert [row.name for row in table.first] == first
        assert [row.name for row in table.others] == ["positions"]
    markup = card_of(explained(cause=nothing, static_inputs=(right,)), ANCHOR)
    assert "<summary>No fault was found in the 1 static input</summary>" in markup


@pytest.mark.parametrize(
    ("padding", "left_by"), [("fill 0", [3, 3]), ("fill once", [3, -1]), ("keep", [3, 2])]
)
def test_a_tail_that_is_as_its_padding_says_is_no_fault(padding: str, left_by: list[int]) -> None:
    row = static_input("positions", [6, 0], left_by, padding=padding)
    table = static_inputs.tabulate(explanation(static_inputs=(row,)), STEPS)
    assert table is not None
    assert [row.fault for row in table.inputs] == [""]


def test_the_page_shows_the_guilty_input_and_folds_the_others() -> None:
    markup = card_of(explained(), ANCHOR)
    guilty, folded = markup.split("The other 7 static inputs")
    assert "out_cache_loc_swa</span>" in guilty[guilty.index("Static inputs at") :]
    assert "element 1 was not refilled" in words_of(guilty)
    assert "input_ids</span>" in folded


def test_request_rows_and_token_rows_are_told_apart_and_the_unknown_is_not_padding() -> None:
    index = cause().index
    assert index is not None
    for axis, request, name in (
        ("request", 1, "step 2, target_verify, request row 1 (request 1)"),
        ("token", 0, "step 2, target_verify, token row 1 (request 0)"),
        ("list", None, "step 2, target_verify, element 1"),
    ):
        writer = Writer(2, "target_verify", 1, request, axis)
        assert described(index=replace(index, left_by=writer)).chain[0].name == name


def test_what_the_harness_wrote_is_not_said_to_be_the_runners() -> None:
    index = cause().index
    assert index is not None
    found = described(index=replace(index, how="equalized", stale=False)).chain
    assert found[0].name == "the harness, in step 2"
    assert "written in this step" not in found[1].value
