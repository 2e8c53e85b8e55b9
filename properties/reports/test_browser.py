"""Tests that open pages in a real browser, if one is here.

A page must ask nothing of anybody, log nothing, and be usable by keyboard, on a phone, in
the dark and on paper.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.schema import Record
from paritybit.reports.compared.runs import compare_runs
from paritybit.reports.page import render, render_comparison

from properties.support.reports.browser import DESK, PHONE, Visit, violations
from properties.support.reports.pages import sample_markup
from properties.support.reports.records import (
    SAMPLES,
    finding_of,
    green,
    red,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ANCHOR = "bug-swa_pad-decode-generated"

PAINTED_WITHIN, OPENED_WITHIN = 3, 10
"""Seconds in which it shows its verdict, and all of it, on a busy machine."""


def saved(folder: Path, page: str | Record) -> Path:
    """Write the page of a record, or of the sample of that name."""
    path = folder / "index.html"
    write_whole(path, sample_markup(page) if isinstance(page, str) else render(page))
    return path


def choice(page: "Page", name: str) -> "Locator":
    """Return what the findings are filtered by."""
    return page.locator(f'#filters select[name="{name}"]')


def shown(page: "Page") -> list[str]:
    """Return the ids of the findings that are shown."""
    found: list[str] = page.locator(".card:visible").evaluate_all("all => all.map(one => one.id)")
    return found


def open_all(page: "Page") -> None:
    """Open every finding, and all that is folded in it."""
    page.evaluate("document.querySelectorAll('.card').forEach(card => { card.open = true; })")
    page.wait_for_function("!document.querySelector('.card > script')")
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """The page of two runs, one of which found more."""
    before, after = green(), red()
    path = tmp_path / "compare.html"
    write_whole(path, render_comparison(before, after, compare_runs(before, after)))
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_opens_without_an_error_or_a_request(
    name: str, visit: Visit, tmp_path: Path
) -> None:
    page = visit.open(saved(tmp_path, name))
    assert page.locator("h1").is_visible()
    assert page.locator(".card").count() > 0
    assert page.locator(".card[open]").count() == 0


def test_a_comparison_opens_without_an_error_or_a_request(visit: Visit, comparison: Path) -> None:
    page = visit.open(comparison, "change-1")
    assert page.locator("h1").inner_text() == "Worse"
    assert page.locator("#change-1 .proof").is_visible()


def test_a_link_to_a_finding_opens_it_and_shows_it(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, "red"), ANCHOR)
    card = page.locator(f"#{ANCHOR}")
    assert card.get_attribute("open") is not None
    assert card.locator(".proof").is_visible()
    assert page.locator(".card[open]").count() == 1
    top = card.evaluate("card => card.getBoundingClientRect().top")
    assert 0 <= top < DESK["height"] / 2


def test_filters_show_the_findings_that_match_them_all(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, "red"))
    whole = page.locator(".card").count()
    choice(page, "ended").select_option("")
    choice(page, "property").select_option("kv_parity")
    choice(page, "source").select_option("traffic")
    assert shown(page) == ["bug-swa_pad-decode-traffic"]
    assert page.locator("#shown").inner_text() == f"1 of {whole} shown"
    page.get_by_role("button", name="All findings").click()
    page.wait_for_function("document.querySelectorAll('.card[hidden]').length === 0")
    assert len(shown(page)) == whole


def test_filters_are_kept_in_the_address_and_restored_from_it(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, "red"))
    choice(page, "ended").select_option("")
    page.get_by_label("text").fill("the MEMO  is not CLEARED")
    choice(page, "outcome").select_option("caught")
    found = shown(page)
    assert found == ["bug-loc_memo_capture-decode-generated"]
    assert page.url.endswith("?text=the+MEMO++is+not+CLEARED&ended=&outcome=caught")
    page.reload()
    assert shown(page) == found
    assert page.get_by_label("text").input_value() == "the MEMO  is not CLEARED"
    page.get_by_role("button", name="All findings").click()
    page.reload()
    assert len(shown(page)) == page.locator(".card").count()


def test_a_finding_opens_by_keyboard_with_the_focus_in_sight(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, "green"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("#key > summary").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.parentElement.className") == "card"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator(".card[open] .proof").is_visible()


def test_nothing_but_wide_drawings_and_tables_scrolls_sideways_on_a_phone(
    visit: Visit, tmp_path: Path
) -> None:
    visit.page.set_viewport_size(PHONE)
    page = visit.open(saved(tmp_path, "red"))
    page.evaluate("document.querySelectorAll('details').forEach(card => { card.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_on_paper_stands_what_is_open_or_was_not_expected_filtered_or_not(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.open(saved(tmp_path, "red"), ANCHOR)
    choice(page, "source").select_option("traffic")
    page.emulate_media(media="print")
    unsound = page.locator(".card.unsound")
    assert unsound.count() > 0
    wanted = page.locator(f".card.unsound, #{ANCHOR}")
    assert shown(page) == wanted.evaluate_all("all => all.map(one => one.id)")
    heights = unsound.locator(".proof").evaluate_all(
        "all => all.map(proof => proof.checkVisibility({ contentVisibilityAuto: true }))"
    )
    assert heights
    assert all(heights)
    assert page.locator("#filters").is_hidden()
    assert (
        "did not end as expected. The printed page has those"
        in page.locator(".on-paper").inner_text()
    )


def test_a_command_can_be_copied(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, "green"), ANCHOR)
    page.locator(f'[data-copy="{ANCHOR}--command"]').click()
    selected = page.evaluate("getSelection().toString()")
    assert selected == finding_of(green(), 0).reproduce


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", ["color-contrast"])])
def test_no_rule_of_accessibility_is_violated_with_every_finding_open(
    scheme: "Literal['light', 'dark']", rules: list[str] | None, visit: Visit, tmp_path: Path
) -> None:
    """In the dark, colours alone can differ."""
    record = red()
    few = replace(record, clean=record.clean[4:5], bugs=(record.bugs[3], record.bugs[5]))
    visit.page.emulate_media(color_scheme=scheme)
    page = visit.open(saved(tmp_path, few))
    choice(page, "ended").select_option("")
    open_all(page)
    assert violations(page, rules) == []


def test_a_script_that_is_not_the_pages_own_does_not_run(visit: Visit, tmp_path: Path) -> None:
    path = saved(tmp_path, "green")
    foreign = "<script>document.title = 'run'</script></body>"
    write_whole(path, path.read_text().replace("</body>", foreign))
    assert visit.open(path).title() != "run"
    (refused,) = visit.complaints
    assert "Content Security Policy" in refused
    visit.complaints.clear()


def test_a_case_is_downloaded_from_the_page_under_its_own_name(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.open(saved(tmp_path, green()), ANCHOR)
    card = page.locator(f"#{ANCHOR}")
    card.get_by_text("The case file").click()
    with page.expect_download() as download:
        card.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "swa_pad-decode.json"
    case = json.loads(download.value.path().read_text())
    assert case["trial"]["bugs"] == ["swa_pad"]
