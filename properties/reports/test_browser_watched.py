"""The page of `watch` in a real browser, if one is here."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.reports.watched.page import render

from paritybit.launch.schema import Watched
from properties.support.records import shown
from properties.support.reports.browser import PHONE, Visit, violations

OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"


def saved(folder: Path, record: Watched, tree: str = "") -> Path:
    """Write the page of a record in a folder whose name a shell must quote."""
    path = folder / "an engine's run" / "index.html"
    path.parent.mkdir()
    path.write_text(render(record, tree), encoding="utf-8")
    return path


def test_it_opens_without_an_error_or_a_request(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, shown()))
    assert page.locator("h1").inner_text().endswith("25 findings with 1 cause")
    first, second = page.locator(".card").all()
    assert first.locator(".excerpt mark").inner_text().strip() == "11      line = 11"
    assert second.get_attribute("open") is None
    assert page.locator("#baseline tbody tr").count() == 2


def test_a_copied_command_names_the_case_where_it_is(visit: Visit, tmp_path: Path) -> None:
    path = saved(tmp_path, shown())
    page = visit.open(path)
    command = page.locator("#cause-1-replay").inner_text()
    words = ["paritybit", "replay", str(path.parent / "cases" / "finding-1.json")]
    assert shlex.split(command) == [*words, "--engine", "sglang==1"]
    button = page.locator("[data-copy=cause-1-replay]")
    button.click()
    assert page.evaluate("getSelection().toString()") == command


def test_a_copied_command_names_the_source_tree_where_it_is(visit: Visit, tmp_path: Path) -> None:
    path = saved(tmp_path, replace(shown(), engine="."), tree="../..")
    command = visit.open(path).locator("#cause-1-replay").inner_text()
    words = ["paritybit", "replay", str(path.parent / "cases" / "finding-1.json")]
    assert shlex.split(command)[:3] == words
    assert Path(shlex.split(command)[4]) == tmp_path.parent


def test_filters_and_the_index_lead_to_a_cause(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, shown()))
    page.locator('#filters select[name="known"]').select_option("no")
    assert page.locator(".card:visible").count() == 1
    assert page.locator("#shown").inner_text() == "1 of 2 shown"
    page.locator('a[href="#cause-2"]').click()
    page.locator("#cause-2[open]").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_accessibility_is_violated(scheme: str, visit: Visit, tmp_path: Path) -> None:
    visit.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page = visit.open(saved(tmp_path, shown()))
    page.evaluate(OPEN_ALL)
    assert violations(page) == []


def test_nothing_is_wider_than_a_phone(visit: Visit, tmp_path: Path) -> None:
    visit.page.set_viewport_size(PHONE)
    page = visit.open(saved(tmp_path, shown()))
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_on_paper_are_the_causes_that_fail_the_run(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(saved(tmp_path, shown()))
    page.emulate_media(media="print")
    assert page.locator("#cause-1 .proof").first.is_visible()
    assert not page.locator("#cause-2").is_visible()
    assert not page.locator("#filters").is_visible()
