"""Golden files of reports. `python -m properties.reports.samples` makes them again."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from paritybit.harness.records.codec import encoded
from paritybit.reports import laboratory, sanitizer, terminal
from paritybit.reports.annotations import annotations
from paritybit.reports.junit import junit_of
from paritybit.reports.markdown import summary
from paritybit.reports.model import Report
from paritybit.reports.page import render
from paritybit.reports.sarif import sarif_of
from rich.console import Console

from properties.support.records import shown
from properties.support.reports.records import green, red

FOLDER = Path(__file__).parent / "golden"


def reports() -> dict[str, Report]:
    """Return the report of each sample record."""
    return {
        "green": laboratory.report_of(green()),
        "red": laboratory.report_of(red()),
        "watch": sanitizer.report_of(shown()),
    }


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each golden file."""
    for name, report in reports().items():
        yield f"{name}.md", summary(report)
        yield f"{name}.txt", printed(report)
    yield "watch.sarif", encoded(without_version(sarif_of(shown(), "python/")))
    yield "watch.xml", junit_of(shown(), "python/")
    for name in ("red", "watch"):
        report = reports()[name]
        sections = tuple(one for one in report.sections if one.anchor != "words")
        yield f"{name}.html", main_part(render(replace(report, sections=sections)))


def without_version(sarif: dict[str, Any]) -> dict[str, Any]:
    """Return a SARIF file without the version of paritybit."""
    sarif["runs"][0]["tool"]["driver"]["version"] = ""
    return sarif


def printed(report: Report) -> str:
    """Return what a terminal of 80 columns shows, and the annotations."""
    console = Console(width=80, file=(stream := StringIO()), color_system=None)
    console.print(*terminal.tables(report), sep="\n", highlight=False)
    for line, _ in terminal.lines(report, Path("out/run")):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    text = "\n".join([stream.getvalue(), *annotations(report, "python/")])
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main_part(page: str) -> str:
    """Return the content of a page, without its style and script."""
    return page[page.index("<main>") : page.index("</main>")]


if __name__ == "__main__":
    for name, text in files():
        (FOLDER / name).write_text(text, encoding="utf-8")
