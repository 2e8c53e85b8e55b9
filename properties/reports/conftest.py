"""A browser for tests of pages, if one is here."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from properties.support.reports.browser import ARGUMENTS, BROWSERS, DESK, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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
    files = (url.partition("?")[0] for url in visit.requests if url.startswith("file://"))
    assert len(set(files)) <= 1
