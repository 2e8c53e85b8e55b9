"""The page, the terminal and the summary of a record."""

import re
from base64 import b64encode
from dataclasses import replace as replaced
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from paritybit.harness.explain.facts import TimelineEntry
from paritybit.reports import drawings, laboratory, sanitizer
from paritybit.reports.annotations import annotations, github_error
from paritybit.reports.markdown import summary
from paritybit.reports.model import Cells, Report, link_addresses
from paritybit.reports.page import render

from properties.reports.samples import FOLDER, files, reports
from properties.support.records import shown
from properties.support.reports.records import red

EVIL = (
    "<script>alert(1)</script>\"'`|*_ [x](javascript:alert(1)) javascript:alert(1) ${{ x }} {{ y }}"
)


@pytest.mark.parametrize("name", dict(files()))
def test_a_report_is_as_its_golden_file(name: str) -> None:
    """Else: `python -m properties.reports.samples`, and read the difference."""
    assert dict(files())[name] == (FOLDER / name).read_text(encoding="utf-8")


class Page(HTMLParser):
    """A page: its ids, its attributes, and the tags that are open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.scripts += tag == "script"
        if tag not in ("meta", "link", "br", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a tag. Fails if another one is open."""
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["green", "red", "watch"])
def test_a_page_is_whole_and_loads_nothing(name: str) -> None:
    text = render(reports()[name])
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    links = {value for tag, attribute, value in page.attributes if attribute == "href"}
    inner = {link for link in links if link.startswith("#")}
    assert inner <= {f"#{one}" for one in page.ids}
    assert all(link.startswith("https://") for link in links - inner - {"data:,"})
    assert not {attribute for _, attribute, _ in page.attributes} & {"src", "onclick", "style"}
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def evil_run() -> Report:
    """Return a report of a run of which each text is hostile."""
    record = red()
    (row,) = record.clean
    assert row.finding is not None and row.finding.explanation is not None
    (hunt,) = record.bugs
    case = row.finding.case
    violations = tuple(replaced(one, message=EVIL) for one in case.violations)
    explanation = replaced(row.finding.explanation, proof=(EVIL,))
    case = replace(case, violations=violations)
    finding = replace(row.finding, case=case, explanation=explanation, error=EVIL)
    evil = replace(
        record,
        message=EVIL,
        command=EVIL,
        started=EVIL,
        clean=(replace(row, finding=finding, error=EVIL),),
        bugs=(replace(hunt, thread=EVIL, mechanism=EVIL, bug=EVIL),),
    )
    return laboratory.report_of(evil)


def evil_watch() -> Report:
    """Return a report of a run of `watch` of which each text is hostile."""
    record = shown()
    findings = tuple(
        replace(one, check=EVIL, text=EVIL, group=EVIL, case=EVIL, known=EVIL)
        for one in record.findings
    )
    evil = replace(
        record, message=EVIL, command=EVIL, engine=EVIL, findings=findings, undecided=(EVIL,)
    )
    return sanitizer.report_of(evil)


@pytest.mark.parametrize("report", [evil_run(), evil_watch()], ids=["regress", "watch"])
def test_no_text_of_a_record_becomes_markup(report: Report) -> None:
    page = Page(render(report))
    assert page.open == []
    assert page.scripts == 1
    assert not [value for _, name, value in page.attributes if value.startswith("javascript:")]
    text = summary(report)
    lines = [line for line in text.splitlines() if "- replay: `" not in line]
    assert not re.search(r"(?<!\\)[<\[(|`]", re.sub(r"^[|].*", "", "\n".join(lines), flags=re.M))
    assert all(line.count("\n") == 0 for line in annotations(report))


def test_an_annotation_is_one_line() -> None:
    line = github_error("50%, a:b\r\n::error::x", file="a,b", title="c:d\n")
    assert line == "::error file=a%2Cb,title=c%3Ad%0A::50%25, a:b%0D%0A::error::x"


def test_only_public_addresses_become_links() -> None:
    pieces = link_addresses("see https://github.com/a/b/pull/7, javascript:x")
    assert [(one.text, one.href) for one in pieces] == [
        ("see ", ""), ("a/b#7", "https://github.com/a/b/pull/7"), (", javascript:x", "")
    ]  # fmt: skip


def test_failures_with_one_cause_are_one_and_the_shortest_is_told() -> None:
    record = red()
    (row,) = record.clean
    assert row.finding is not None
    schedule = row.finding.case.schedule
    longer = replace(schedule, steps=schedule.steps * 2)
    long = replace(
        row, finding=replace(row.finding, case=replace(row.finding.case, schedule=longer))
    )
    report = laboratory.report_of(replace(record, clean=(long, row)))
    assert [one.count for one in report.causes] == ["2 trials", "1 trial"]
    (first, *_) = laboratory.report_of(record).causes
    assert report.causes[0].replay == first.replay


@pytest.mark.parametrize("padded", [10**9, 10**400, -(10**400)])
def test_a_drawing_of_a_hostile_record_is_small(padded: int) -> None:
    entry = TimelineEntry(0, "decode", (), (), "decode", "decode", 2, tuple(range(9_999)), padded)
    drawn = drawings.steps([entry] * 9_999)
    assert isinstance(drawn, Cells)
    assert sum(len(boxes) for _, boxes in drawn.rows) < 10_000
