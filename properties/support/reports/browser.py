"""A page open in a real browser, and what it asked for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

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


def violations(page: "Page", rules: list[str] | None = None) -> list[tuple[str, str]]:
    """Return the rules of accessibility that a page violates, all or some, each with an element."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: it is not installed"
    )
    options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
    found = axe.Axe().run(page, options=options).response
    assert found["passes"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
