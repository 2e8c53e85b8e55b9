"""Tests that open pages in a real browser, if one is here.

A page must ask nothing of anybody, log nothing, and be usable by keyboard, on a phone, in
the dark and on paper.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.records.files import write_whole
from harness.records.schema import Record
from properties.support.reports.records import (
    SAMPLES,
    finding_of,
    green,
    many,
    red,
)
from reports.compared.previous import Previous
from reports.compared.runs import compare_runs
from reports.page import render, render_comparison

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, ViewportSize

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK: "ViewportSize" = {"width": 1280, "height": 900}
PHONE: "ViewportSize" = {"width": 375, "height": 700}
ANCHOR = "bug-swa_pad-decode-generated"
PAINTED_WITHIN, OPENED_WITHIN = 3, 10
"""Seconds in which a page of 500 findings shows its verdict, and all of it, on a busy machine."""


@dataclass
class Visit:
    """A page open in a browser, and all that it asked for, logged or threw."""

    page: "Page"
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Listen."""
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, path: Path, anchor: str = "") -> "Page":
        """Open a file at an anchor, and return the page."""
        self.page.goto(f"{path.as_uri()}#{anchor}" if anchor else path.as_uri())
        return self.page


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A headless browser for the tests of this module."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no browser test: Playwright is not installed"
    )
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no browser test: no Chromium is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Visit]:
    """A visit at a desk, which must end without a complaint or a request but for the file."""
    page = browser.new_page(viewport=DESK)
    visit = Visit(page)
    yield visit
    page.close()
    assert visit.complaints == []
    assert all(url.startswith(("file://", "data:")) for url in visit.requests)
    assert len({url for url in visit.requests if url.startswith("file://")}) <= 1


def saved(folder: Path, record: Record) -> Path:
    """Write the page of a record."""
    path = folder / "index.html"
    write_whole(path, render(record))
    return path


def choice(page: "Page", name: str) -> "Locator":
    """Return what the findings are filtered by."""
    return page.locator(f'label:has-text("{name}") select[name="{name}"]')


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
    page = visit.open(saved(tmp_path, SAMPLES[name]))
    assert page.locator("h1").is_visible()
    assert page.locator(".card").count() > 0
    assert page.locator(".card[open]").count() == 0


def test_a_comparison_opens_without_an_error_or_a_request(visit: Visit, comparison: Path) -> None:
    page = visit.open(comparison, "change-1")
    assert page.locator("h1").inner_text() == "Worse"
    assert page.locator("#change-1 .proof").is_visible()


def test_a_link_to_a_finding_opens_it_and_shows_it(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, red()), ANCHOR)
    card = page.locator(f"#{ANCHOR}")
    assert card.get_attribute("open") is not None
    assert card.locator(".proof").is_visible()
    assert page.locator(".card[open]").count() == 1
    top = card.evaluate("card => card.getBoundingClientRect().top")
    assert 0 <= top < DESK["height"] / 2


def test_a_cell_of_the_matrix_opens_its_finding_again_and_again(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.open(saved(tmp_path, green()))
    card, link = page.locator(f"#{ANCHOR}"), page.locator(f'#runners a[href="#{ANCHOR}"]')
    for _ in range(2):
        link.click()
        card.locator(".proof").wait_for(state="visible")
        card.locator("summary").first.click()
        card.locator(".proof").wait_for(state="hidden")


def test_filters_show_the_findings_that_match_them_all(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, red()))
    whole = page.locator(".card").count()
    choice(page, "property").select_option("kv_parity")
    choice(page, "source").select_option("traffic")
    shown = page.locator(".card:visible")
    assert [card.get_attribute("id") for card in shown.all()] == ["bug-swa_pad-decode-traffic"]
    assert page.locator("#shown").inner_text() == f"1 of {whole} shown"
    page.get_by_role("button", name="All findings").click()
    page.wait_for_function("document.querySelectorAll('.card[hidden]').length === 0")
    assert shown.count() == whole


def test_a_link_to_a_finding_that_is_filtered_away_shows_it(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, red()))
    choice(page, "source").select_option("traffic")
    assert page.locator(f"#{ANCHOR}").is_hidden()
    page.locator(f'#runners a[href="#{ANCHOR}"]').click()
    page.locator(f"#{ANCHOR} .proof").wait_for(state="visible")


def test_a_finding_opens_by_keyboard_with_the_focus_in_sight(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, green()))
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
    page = visit.open(saved(tmp_path, red()))
    page.evaluate("document.querySelectorAll('details').forEach(card => { card.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_comparison_fits_on_a_phone(visit: Visit, comparison: Path) -> None:
    visit.page.set_viewport_size(PHONE)
    page = visit.open(comparison, "change-1")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_page_follows_the_colours_of_the_machine(visit: Visit, tmp_path: Path) -> None:
    path, grounds = saved(tmp_path, green()), []
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)
        visit.open(path)
        grounds.append(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]


def test_on_paper_everything_is_open_and_nothing_is_filtered(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, red()))
    choice(page, "source").select_option("traffic")
    page.emulate_media(media="print")
    assert page.locator(".card").count() == page.locator(".card:visible").count()
    heights = page.locator(".card .proof").evaluate_all(
        "all => all.map(proof => proof.checkVisibility({ contentVisibilityAuto: true }))"
    )
    assert heights
    assert all(heights)
    assert page.locator("#filters").is_hidden()


def test_a_command_can_be_copied(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, green()), ANCHOR)
    page.locator(f'[data-copy="{ANCHOR}--command"]').click()
    selected = page.evaluate("getSelection().toString()")
    assert selected == finding_of(green(), 0).reproduce


def test_a_page_of_500_findings_opens_at_once(
    visit: Visit, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = saved(tmp_path, many(500))
    started = time.monotonic()
    page = visit.open(path)
    opened = time.monotonic() - started
    painted = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    )
    filtered = page.evaluate(FILTER) / 1000
    figures = {"megabytes": path.stat().st_size / 1e6, "first paint": painted}
    for name, value in (figures | {"open": opened, "filtered": filtered}).items():
        record_property(name, value)
        print(f"{name}: {value:.2f}")  # noqa: T201  # `pytest -rP` shows the figures
    assert page.locator(".card").count() == 501
    assert page.locator(".card[hidden]").count() > 0
    assert painted < PAINTED_WITHIN
    assert opened < OPENED_WITHIN


FILTER = """() => {
  const started = performance.now();
  const select = document.querySelector("select[name=bug]");
  select.value = "swa_pad";
  select.dispatchEvent(new Event("change", { bubbles: true }));
  document.body.getBoundingClientRect();
  return performance.now() - started;
}"""
"""Filters the findings, and returns the milliseconds that it took, layout included."""


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


def test_the_run_before_fits_on_a_phone_and_its_link_leads_to_its_page(
    visit: Visit, tmp_path: Path
) -> None:
    name = "20251122T105000Z"
    comparison = compare_runs(green(), red())
    previous = Previous(name, f"../{name}/index.html", "paritybit compare a b", comparison)
    path = tmp_path / "20251122T115000Z" / "index.html"
    write_whole(path, render(red(), previous))
    visit.page.set_viewport_size(PHONE)
    page = visit.open(path, "previous")
    assert page.locator("#previous h2").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    link = page.get_by_role("link", name="The page of the previous run").get_attribute("href")
    assert (path.parent / str(link)).resolve() == tmp_path / name / "index.html"
