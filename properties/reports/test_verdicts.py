"""Tests that terminal, page and summary say the same of a run: verdict words, marks and counts."""

import re
from dataclasses import replace
from io import StringIO
from typing import get_args

from paritybit.harness.campaigns.task import GOOD, Status
from paritybit.harness.cli.display import clean_table, matrix, runner_matrix
from paritybit.harness.records.schema import BugRow, CleanStatus, HuntStatus, Record
from paritybit.reports.page import render
from paritybit.reports.review import review
from paritybit.reports.summary import summarise
from paritybit.reports.verdicts import clean_green, hunts_sound, sound
from rich.console import Console

from properties.support.reports.pages import RunnerSection, marks_of, text_of
from properties.support.reports.records import bug, green, swa_pad_finding

RUNNERS = ("decode", "target_verify", "piecewise")


ON_RUNNERS: dict[str, tuple[HuntStatus, ...]] = {
    "caught_or_unaffected": ("unaffected", "caught", "unaffected"),
    "missed_once": ("caught", "missed", "unaffected"),
    "never_affected": ("unaffected", "unaffected", "unaffected"),
}
"""Of a bug: how its hunt on each runner ends."""


def every_verdict() -> Record:
    """Return a record with a bug of each verdict, one caught here and unaffected there, and more.

    Each bug is called by its verdicts.
    """
    hunts = [hunt(status, status.replace(" ", "_"), "decode") for status in get_args(HuntStatus)]
    for name, ends in ON_RUNNERS.items():
        hunts += [hunt(ended, name, runner) for ended, runner in zip(ends, RUNNERS, strict=True)]
    names = dict.fromkeys(row.bug for row in hunts)
    pairs = tuple(
        replace(pair, bug=name, unaffected=unaffected(hunts, name, pair.runner))
        for name in names
        for pair in green().pairs[:4]
    )
    statuses: tuple[CleanStatus, ...] = get_args(CleanStatus)
    clean = tuple(
        replace(green().clean[number], status=status) for number, status in enumerate(statuses)
    )
    return replace(green(), verdict="red", bugs=tuple(hunts), pairs=pairs, clean=clean)


def hunt(status: HuntStatus, name: str, runner: str) -> BugRow:
    """Return a hunt that ended so, with what such a hunt has."""
    found = status in {"caught", "wrong property", "affected after all"}
    cannot = status in {"unaffected", "affected after all"}
    return bug(
        name,
        status,
        runner,
        detected_by=None if cannot else "kv_parity",
        unaffected="it cannot" if cannot else None,
        seen=("logits_parity",) if status == "wrong property" else ("kv_parity",) if found else (),
        finding=swa_pad_finding() if found else None,
        schedules_to_detection=6 if found else None,
    )


def unaffected(hunts: list[BugRow], name: str, runner: str) -> str | None:
    """Return why a bug cannot affect a runner, as its hunt there says."""
    return next((row.unaffected for row in hunts if (row.bug, row.runner) == (name, runner)), None)


def printed(record: Record) -> str:
    """Return the tables that a terminal shows of a record."""
    stream = StringIO()
    console = Console(file=stream, width=200)
    console.print(clean_table(record), matrix(record), runner_matrix(record))
    return stream.getvalue()


def rows_of(text: str, name: str) -> list[list[str]]:
    """Return the cells of a bug's rows in the terminal's tables."""
    return [line.split() for line in text.splitlines() if re.match(rf"\s*{name}\s", line)]


def test_what_is_caught_where_it_can_be_is_caught_though_it_cannot_be_everywhere() -> None:
    words = {row.name: (row.status, row.sound) for row in review(every_verdict()).matrix}
    assert words["caught_or_unaffected"] == ("caught", True)
    assert words["missed_once"] == ("missed", False)
    assert words["never_affected"] == ("unaffected", True)


SIGNS = {"●": "●", "✗": "✕", "○": "○"}
"""Of each mark of the terminal: the page's."""


def test_the_terminal_and_the_page_mark_the_same_properties_and_runners() -> None:
    record = every_verdict()
    text, page = printed(record), render(record)
    section = RunnerSection(page)
    for name in dict.fromkeys(row.bug for row in record.bugs):
        of_properties, of_runners = rows_of(text, name)
        marks = [sign.rstrip("123") for kind, sign in marks_of(page, name) if kind != "none"]
        assert [SIGNS[cell] for cell in of_properties if cell in SIGNS] == marks, name
        cells = [cell.mark[1] for cell in section.rows[name] if cell.mark[1] != "·"]
        assert [SIGNS.get(cell, cell) for cell in of_runners[1:]] == cells, name


def test_counts_are_the_same_wherever_they_stand() -> None:
    record = every_verdict()
    clean = f"1 of {len(get_args(CleanStatus))}"
    hunts = f"{sum(sound(row.status) for row in record.bugs)} of {len(record.bugs)}"
    assert (clean_green(record), hunts_sound(record)) == (clean, hunts)
    text, page, markdown = printed(record), text_of(record), summarise(record)
    assert f"clean trials passed {clean}" in page
    assert f"bug hunts that ended as expected {hunts}" in page
    assert f"| clean trials passed | {clean} |" in markdown
    assert f"| bug hunts that ended as expected | {hunts} |" in markdown
    assert f"{len(record.clean)} clean trials, all properties checked" in text
    assert f"{len(record.bugs)} hunts" in text


def test_what_a_campaign_takes_for_good_is_what_a_report_takes_for_sound() -> None:
    assert {status for status in Status if sound(str(status))} == GOOD
