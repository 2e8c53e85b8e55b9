"""Tests of a finding's explanation on the page: proof, static inputs, slots; and of the plots."""

import re
from typing import Any

import pytest

from properties.sample_records import (
    NOBODY,
    Record,
    bug,
    explanation,
    green,
    red,
    static_input,
    sub_pool,
    swa_pad_finding,
)
from reports import detection_plot, slot_map, static_inputs
from reports.explanation import THIRD_ARM, explain
from reports.page import render
from reports.skipped import skipped

STEPS = swa_pad_finding()["timeline"]


def card(record: Record, anchor: str) -> str:
    """Return the markup of a card."""
    text = render(record)
    start = text.index(f'<details class="card" id="{anchor}"')
    end = text.find('<details class="card"', start + 1)
    return text[start:end]


def words_of(markup: str) -> str:
    """Return the text of markup, white space folded."""
    return " ".join(re.sub("<[^>]*>", " ", markup).split())


def explained(**changes: Any) -> Record:
    """Return a green record whose first hunt has an explanation with these changes."""
    record = green()
    record["bugs"][0]["finding"]["explanation"] = explanation(**changes)
    return record


def test_the_card_tells_the_proof_in_order_and_what_is_to_blame() -> None:
    message = words_of(card(explained(), "bug-swa_pad-decode-generated"))
    proof = explanation()["proof"]
    places = [message.index(sentence) for sentence in proof]
    assert places == sorted(places)
    assert "To blame: inputs." in message
    assert THIRD_ARM["as the graph"] in message


@pytest.mark.parametrize("arm", [arm for arm in THIRD_ARM if arm is not None])
def test_the_third_arm_is_told_in_words(arm: str) -> None:
    message = words_of(card(explained(third_arm=arm), "bug-swa_pad-decode-generated"))
    assert [other for other in THIRD_ARM.values() if other and other in message] == [THIRD_ARM[arm]]


def test_the_chain_leads_from_the_stale_element_to_the_first_difference() -> None:
    found = explain(explanation(), STEPS)
    assert found is not None
    assert [link.name for link in found.chain] == [
        "step 2, decode, row 1 (request 1)",
        "out_cache_loc_swa[1] = 9",
        "target, swa slot 9",
        "store_kv, target, layer 0, swa, K",
    ]
    assert found.chain[1].value == "stale, 0 would be right"
    assert "padded row 1" in found.chain[-1].value


def test_an_index_that_the_graph_itself_holds_is_told_as_such() -> None:
    capture = {"step": -1, "runner": "decode", "row": 1, "request": None, "how": "capture"}
    baked = {"buffer": None, "element": None, "left_by": capture}
    found = explain(explanation(index=explanation()["index"] | baked), STEPS)
    assert found is not None
    assert [link.name for link in found.chain[:2]] == ["capture", "slot 9, in no static input"]
    assert found.table is not None
    assert not any("culprit" in each.kinds for row in found.table.inputs for each in row.elements)


def test_an_index_that_leads_to_another_number_says_so() -> None:
    found = explain(explanation(index=explanation()["index"] | {"read": 0, "stale": False}), STEPS)
    assert found is not None
    assert found.chain[1].value == "written by this step, 0 would be right, leads to slot 0"


@pytest.mark.parametrize("key", ["index", "slot", "difference", "third_arm", "site"])
def test_an_explanation_may_lack_a_part(key: str) -> None:
    whole = explain(explanation(site={"function": "f", "file": "a.py", "message": "t"}), STEPS)
    part = explain(
        explanation(**{"site": {"function": "f", "file": "a.py", "message": "t"}} | {key: None}),
        STEPS,
    )
    assert whole is not None
    assert part is not None
    lost = {"index": 2, "slot": 1, "site": 1, "difference": 1, "third_arm": 0}[key]
    assert len(whole.chain) - len(part.chain) == lost
    assert "To blame" in card(explained(**{key: None}), "bug-swa_pad-decode-generated")


def test_a_finding_without_an_explanation_still_shows_what_was_seen() -> None:
    record = green()
    record["bugs"][0]["finding"]["explanation"] = None
    message = words_of(card(record, "bug-swa_pad-decode-generated"))
    assert "Step 3 violates" in message
    assert "12 of 32 bits differ" in message
    assert "To blame" not in message
    assert "Static inputs" not in message


def test_a_build_fault_shows_neither_inputs_nor_slots() -> None:
    record = explained(bucket=None, live_size=None, static_inputs=[], slots=[])
    message = words_of(card(record, "bug-swa_pad-decode-generated"))
    assert "Static inputs at" not in message
    assert "Slots after" not in message


def test_each_element_says_whether_it_is_live_stale_and_who_left_it() -> None:
    table = static_inputs.tabulate(explanation(), STEPS)
    assert table is not None
    rows = {each.name: each for each in table.inputs}
    culprit = rows["out_cache_loc_swa"].elements
    assert [(each.value, each.kinds, each.source) for each in culprit] == [
        ("8", "live", ""),
        ("9", "padded stale culprit", "step 2"),
    ]
    assert [each.source for each in rows["encoder_lens"].elements] == ["", "capture"]
    assert [each.kinds for each in rows["input_ids"].elements] == ["live", "padded"]
    assert [(each.name, each.value) for each in table.sources] == [
        ("capture", "never written since"),
        ("step 2", "decode of requests 0, 1"),
    ]


def test_each_section_of_a_static_input_has_a_live_head() -> None:
    mrope = static_input("mrope_positions", [6, 0] * 3, [3, 2] * 3, axis="3 x token")
    table = static_inputs.tabulate(explanation(static_inputs=[mrope]), STEPS)
    assert table is not None
    assert [each.kinds for each in table.inputs[0].elements] == ["live", "padded"] * 3


def test_the_card_marks_as_many_cells_as_are_stale() -> None:
    markup = card(explained(), "bug-swa_pad-decode-generated")
    assert markup.count('<li class="padded stale culprit">9<small>step 2</small></li>') == 1
    assert len(re.findall(r'<li class="[^"]*stale', markup)) == 1
    assert "2 stale." in words_of(markup)


def test_a_long_static_input_says_what_is_not_shown_of_it() -> None:
    long = static_input("custom_mask", [1] * 60, [3] * 60, stale=[55, 2])
    table = static_inputs.tabulate(explanation(static_inputs=[long]), STEPS)
    assert table is not None
    assert len(table.inputs[0].elements) == static_inputs.MOST_ELEMENTS
    assert (
        table.inputs[0].omitted == f"and {60 - static_inputs.MOST_ELEMENTS} more, 1 of them stale"
    )


def test_a_map_draws_each_slot_once_in_the_state_of_its_owner() -> None:
    pool = sub_pool("swa", {3: 0, 8: 0, 9: 1}, 40, written=[8, 9], differs=[9], page_size=4)
    drawn = slot_map.lay_out(pool)
    boxes = {path.name: path.value.count("M") for path in drawn.paths}
    assert boxes == {"reserved": 4, "live": 2, "parked": 1, "written": 2, "differs": 1}
    assert [each.text for each in drawn.owners["live"]] == ["0", "0"]
    assert [each.text for each in drawn.owners["parked"]] == ["1"]
    assert [row.text for row in drawn.rows] == ["0", "16", "32"]
    assert "differing: 9 (request 1’s)" in drawn.message
    assert pool["owners"].count(NOBODY) == 37


@pytest.mark.parametrize("size", [1, 15, 16, 17, 80])
def test_a_map_stays_within_its_frame_and_no_two_slots_share_a_box(size: int) -> None:
    pool = sub_pool("full", dict.fromkeys(range(size), 0), size)
    drawn = slot_map.lay_out(pool)
    (live,) = [path.value for path in drawn.paths if path.name == "live"]
    corners = [(int(x), int(y)) for x, y in re.findall(r"M(\d+) (\d+)", live)]
    assert len(set(corners)) == len(corners) == size
    assert all(x + slot_map.CELL <= drawn.width for x, _ in corners)
    assert all(y + slot_map.CELL <= drawn.height + 1 for _, y in corners)


def test_the_page_has_a_map_of_each_sub_pool() -> None:
    markup = card(explained(), "bug-swa_pad-decode-generated")
    assert markup.count('<svg class="slots"') == len(explanation()["slots"]) == 4


def hunts() -> list[Record]:
    """Return hunts of two bugs: caught early, caught late, missed, and one that cannot catch."""
    return [
        bug("swa_pad", "caught", schedules_to_detection=1),
        bug("swa_pad", "caught", "target_verify", schedules_to_detection=1),
        bug("swa_pad", "caught", source="traffic", schedules_to_detection=50),
        bug("swa_int64", "missed"),
        bug("loc_memo_warning.entry", "unaffected", detected_by=None),
    ]


def test_a_plot_has_a_dot_for_all_hunts_that_drew_equally_many() -> None:
    plot = detection_plot.lay_out(hunts(), "bug", 50)
    assert plot is not None
    assert [line.name for line in plot.lines] == ["swa_pad", "swa_int64"]
    early, late = plot.lines[0].dots
    (missed,) = plot.lines[1].dots
    assert (early.count, late.count, missed.count) == (2, 1, 1)
    assert (early.kind, late.kind, missed.kind) == ("generated", "traffic", "missed")
    assert plot.left == early.x < late.x < missed.x < plot.width
    assert plot.message == "3 of 4 hunts caught their bug"
    assert early.message == "generated, after 1: swa_pad@decode, swa_pad@target_verify"


def test_a_plot_of_bugs_that_need_not_be_caught_is_not_drawn() -> None:
    assert detection_plot.lay_out(hunts()[-1:], "bug", 50) is None
    assert 'id="detection"' not in render(green() | {"bugs": []})


def test_a_hunt_of_one_schedule_can_be_plotted() -> None:
    assert detection_plot.lay_out(hunts()[:1], "runner", 1) is not None


def test_the_page_says_what_was_stubbed_or_skipped() -> None:
    message = {fact.name: fact.value for fact in skipped(green())}
    assert "a graph is a tape" in message["CUDA graphs"]
    assert "Triton kernels" in message
    assert message["cannot be switched on"].startswith("3 of 32 pairs")
    assert "swa_pad@target_verify" in message["hunts not asked for, or not reached"]
    assert "swa_pad@cpu_graph" not in message["hunts not asked for, or not reached"]
    assert message["runners not on trial"] == "target_verify, cpu_graph, piecewise"


def test_a_gpu_run_of_everything_skips_what_the_runners_lack_alone() -> None:
    record = green()
    record["environment"]["device"] = "cuda"
    record["bugs"] = [
        bug(pair["bug"], "caught", pair["runner"])
        for pair in record["pairs"]
        if pair["can_be_switched_on"]
    ]
    names = [fact.name for fact in skipped(record)]
    assert names == ["the compiler’s arithmetic", "cannot be switched on"]


def test_engine_releases_are_shown_where_the_record_has_them() -> None:
    record = green()
    assert 'id="engines"' not in render(record)
    record["engines"] = [
        {
            "release": "0.5.11",
            "faults": {"swa_pad@decode": "present"},
            "stubbed": ["a kernel"],
            "emulated": ["a backend"],
            "message": "one fault of one is present",
        }
    ]
    message = words_of(render(record))
    assert "0.5.11 swa_pad@decode present one fault of one is present a kernel a backend" in message


def test_findings_can_be_filtered_by_what_tells_them_apart() -> None:
    text = render(red())
    form = text[text.index('<form class="filters"') : text.index("</form>")]
    names = re.findall(r'<select name="(\w+)">', form)
    assert names == ["bug", "property", "outcome", "source"]  # All are of one runner.
    assert form.count("<label>") == len(names)
    for name in names:
        (options,) = re.findall(rf'<select name="{name}">(.*?)</select>', form)
        offered = set(re.findall(r"<option>(.*?)</option>", options))
        on_cards = re.findall(rf'<details class="card"[^>]* data-{name}="([^"]*)"', text)
        assert offered == {value for each in on_cards for value in each.split("|") if value}
