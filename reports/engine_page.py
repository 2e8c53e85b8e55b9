"""One HTML page from one record of an engine's trial, in the manner of a run's page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.page import environment

SIGNS = {"present": ("✗", "bad"), "absent": ("✓", "good"), "undecided": ("?", "warn")}
"""Sign and tone of a verdict."""


def render(record: Mapping[str, Any]) -> str:
    """Return the page of a record.

    Raises LookupError or jinja2.UndefinedError for a record that lacks something.
    """
    sign, tone = SIGNS[record["verdict"]]
    answer = record["answer"]
    figures = {
        name: sum(leg[name] for leg in answer["legs"]) for name in ("replays", "padded", "steps")
    }
    page = environment().get_template("engine.html.j2")
    return page.render(record=record, answer=answer, sign=sign, tone=tone, figures=figures)


def write(record: Mapping[str, Any], path: Path) -> None:
    """Write the page of a record to `path`, whose folder exists. Raises as `render` does."""
    path.write_text(render(record), encoding="utf-8", newline="\n")
