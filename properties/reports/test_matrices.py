"""Tests of the page's two matrices: bugs against properties, and bugs against runners."""

import re
from dataclasses import replace
from html import unescape

import pytest
from paritybit.harness.explain.facts import Reach
from paritybit.harness.records.schema import Record
from paritybit.reports.cards import bug_cards
from paritybit.reports.page import render
from paritybit.reports.review import review
from paritybit.reports.verdicts import STATUSES

from properties.support.reports.pages import (
    Cell,
    RunnerSection,
    card_titles,
    marks,
    marks_of,
    sample_markup,
)
from properties.support.reports.records import (
    BUGS,
    HIDDEN,
    LACKS_SWA,
    SAMPLES,
    bug,
    green,
    red,
    with_bug,
)


def test_the_matrix_tells_expected_from_seen() -> None:
    hunts = (
        bug("swa_pad", "caught", seen=("kv_parity", "write_frame")),
        bug("swa_int64", "missed", detected_by="index_contract"),
    )
    record = replace(red(), bugs=hunts)
    text = render(record)
    for name, seen in (
        ("swa_pad", {"kv_parity": "caught", "write_frame": "also"}),
        ("swa_int64", {"index_contract": "missed"}),
    ):
        kinds = [kind for kind, _ in marks_of(text, name)]
        assert kinds == [seen.get(property_id, "none") for property_id in record.properties]
        assert set(seen) <= set(record.properties)


def test_the_matrix_counts_the_hunts_that_saw_a_bug() -> None:
    hunts = (
        bug("swa_pad", "caught", seen=("kv_parity", "write_frame")),
        bug("swa_pad", "caught", "target_verify"),
        bug("swa_pad", "unaffected", "piecewise", detected_by=None, unaffected="nobody reads them"),
    )
    text = render(replace(red(), bugs=hunts))
    assert marks_of(text, "swa_pad")[1:3] == [("caught", "●2"), ("also", "○1")]
    assert marks_of(text, "swa_pad@decode")[1:3] == [("caught", "●1"), ("also", "○1")]
    assert marks_of(text, "swa_pad@target_verify")[1:3] == [("caught", "●1"), ("none", "·")]
    assert {kind for kind, _ in marks_of(text, "swa_pad@piecewise")} == {"none"}


def test_a_bug_that_one_of_its_hunts_missed_is_missed_in_the_matrix() -> None:
    hunts = bug("swa_pad", "caught"), bug("swa_pad", "missed", "target_verify")
    text = render(replace(red(), bugs=hunts))
    assert marks_of(text, "swa_pad")[1] == ("missed", "✕1")


def test_the_matrix_counts_apart_what_was_reached_triggered_and_detected() -> None:
    """Of three hunts one reached nothing, one triggered the bug and missed it, one caught it."""
    never, unseen = Reach(50, 0, 0, None, None), Reach(50, 9, 2, 3, 7)
    hunts = (
        bug("swa_pad", "caught"),
        bug("swa_pad", "missed", "target_verify", reach=unseen),
        bug("swa_pad", "missed", "piecewise", reach=never),
    )
    record = replace(red(), bugs=hunts)
    row = next(row for row in review(record).matrix if row.name == "swa_pad")
    assert (row.reached, row.triggered, row.detected) == (2, 2, 1)
    counts = [[fact.value for fact in card.counts] for card in bug_cards(record)]
    assert "in 9 of 50 observed schedules, first at step 3" in counts[1]
    assert "in 0 of 50 observed schedules" in counts[2]
    cells = re.findall(r'<td class="cell">(\d+)</td>', render(record))
    assert cells[:3] == ["2", "2", "1"]


def section_of(record: Record) -> RunnerSection:
    """Return the section of bugs and runners of a record's page."""
    return RunnerSection(render(record))


@pytest.mark.parametrize("name", SAMPLES)
def test_each_bug_that_was_tried_has_one_cell_for_each_runner(name: str) -> None:
    record, section = SAMPLES[name], RunnerSection(sample_markup(name))
    assert section.runners == list(dict.fromkeys(pair.runner for pair in record.pairs))
    assert list(section.rows) == list(dict.fromkeys(hunt.bug for hunt in record.bugs))
    assert all(len(cells) == len(section.runners) for cells in section.rows.values())


@pytest.mark.parametrize("name", SAMPLES)
def test_each_pair_that_was_tried_leads_to_a_card_of_its_own(name: str) -> None:
    section, titles = RunnerSection(sample_markup(name)), card_titles(sample_markup(name))
    hunted = {(hunt.bug, hunt.runner) for hunt in SAMPLES[name].bugs}
    for bug_name, cells in section.rows.items():
        for runner, cell in zip(section.runners, cells, strict=True):
            if (bug_name, runner) in hunted:
                assert titles[cell.href] == f"{bug_name}@{runner}"
            else:
                assert cell.href == ""


def test_a_cell_says_that_the_bug_was_caught() -> None:
    message = "detected after 6/2 schedules (generated/traffic)"
    expected = Cell(("caught", "6/2"), message, "#bug-swa_pad-decode-generated")
    assert section_of(green()).cell("swa_pad", "decode") == expected


def test_a_cell_says_why_a_bug_that_was_tried_cannot_affect_the_runner() -> None:
    cell = section_of(green()).cell("loc_memo_warning.entry", "decode")
    assert cell.mark[1] == "○"
    assert cell.message == f"tested, cannot affect the runner: {HIDDEN}"
    assert cell.href == "#bug-loc_memo_warning.entry-decode-generated"


def test_a_cell_says_what_the_runner_lacks() -> None:
    cell = section_of(green()).cell("swa_pad", "cpu_graph")
    assert cell == Cell(("none", "–"), f"cannot affect the runner: {LACKS_SWA}", "")


@pytest.mark.parametrize(
    ("name", "runner"), [("swa_pad", "target_verify"), ("loc_memo_capture", "cpu_graph")]
)
def test_a_cell_says_that_nobody_asked_for_it(name: str, runner: str) -> None:
    """Of a bug that can affect the runner as of one that cannot: the runner lacks nothing."""
    cell = section_of(green()).cell(name, runner)
    assert cell == Cell(("none", "·"), "not selected", "")


def test_a_hunt_ended_well_if_it_caught_its_bug_or_found_it_unaffected() -> None:
    assert {name for name, (sound, _) in STATUSES.items() if sound} == {"caught", "unaffected"}


@pytest.mark.parametrize("status", [name for name, (sound, _) in STATUSES.items() if not sound])
def test_a_cell_is_red_if_any_of_its_hunts_did_not_end_well(status: str) -> None:
    section = section_of(with_bug(green(), 1, status=status))
    message = f"{status}: {STATUSES[status][1]}"
    red_cell = Cell(("missed", "✕"), message, "#bug-swa_pad-decode-traffic")
    assert section.cell("swa_pad", "decode") == red_cell
    assert section.cell("loc_memo_capture", "decode").mark == ("caught", "5")


def test_hunts_of_one_bug_on_two_runners_have_cells_of_their_own() -> None:
    unaffected = BUGS["swa_pad"]["piecewise"]
    further = (
        bug("swa_pad", "missed", "target_verify"),
        bug("swa_pad", "unaffected", "piecewise", detected_by=None, unaffected=unaffected),
    )
    cells = section_of(replace(green(), bugs=(*green().bugs, *further))).rows["swa_pad"]
    assert [cell.mark[1] for cell in cells] == ["6/2", "✕", "–", "○"]
    assert [cell.href for cell in cells] == [
        "#bug-swa_pad-decode-generated",
        "#bug-swa_pad-target_verify-generated",
        "",
        "#bug-swa_pad-piecewise-generated",
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_legend_has_every_mark_of_the_bugs_and_runners(name: str) -> None:
    section = RunnerSection(sample_markup(name))
    (legend,) = re.findall(r'<ul class="legend">.*?</ul>', section.markup, re.DOTALL)
    shown = {cell.mark for cells in section.rows.values() for cell in cells}
    caught = {mark for mark in shown if mark[0] == "caught"}  # Each with counts of its own.
    assert {kind for kind, _ in shown} <= {kind for kind, _ in marks(legend)}
    assert shown - caught <= set(marks(legend))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_reason_why_a_bug_cannot_affect_a_runner_is_listed(name: str) -> None:
    section = RunnerSection(sample_markup(name))
    listed = re.findall(r'<dt class="mono">(.*?)</dt><dd>(.*?)</dd>', section.markup, re.DOTALL)
    assert [(unescape(title), unescape(reason)) for title, reason in listed] == [
        (f"{pair.bug}@{pair.runner}", pair.unaffected)
        for pair in SAMPLES[name].pairs
        if pair.unaffected is not None
    ]
    assert len(listed) > 5


def test_a_property_that_must_see_a_bug_on_some_runners_is_judged_on_those_alone() -> None:
    """On prefills another property must see it, and does; on decode this one does, or does not."""
    prefill = bug(
        "swa_pad", "caught", "piecewise", detected_by="write_frame", seen=("write_frame",)
    )
    for decode, kind in (
        (bug("swa_pad", "caught"), "caught"),
        (bug("swa_pad", "missed"), "missed"),
    ):
        text = render(replace(red(), bugs=(decode, prefill)))
        assert [mark for mark, _ in marks_of(text, "swa_pad")][1:3] == [kind, "caught"]
