"""Tests of the page's two matrices: bugs against properties, and bugs against runners."""

from dataclasses import replace

import pytest
from paritybit.harness.records.schema import Record
from paritybit.reports.page import render
from paritybit.reports.verdicts import STATUSES

from properties.support.reports.pages import (
    Cell,
    RunnerSection,
    card_titles,
    marks_of,
    sample_markup,
)
from properties.support.reports.records import (
    BUGS,
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


def test_a_bug_that_one_of_its_hunts_missed_is_missed_in_the_matrix() -> None:
    hunts = bug("swa_pad", "caught"), bug("swa_pad", "missed", "target_verify")
    text = render(replace(red(), bugs=hunts))
    assert marks_of(text, "swa_pad")[1] == ("missed", "✕1")


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
