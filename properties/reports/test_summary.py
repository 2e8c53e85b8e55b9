"""Tests of a run's Markdown summary."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.records import record as records
from paritybit.reports.causes import groups
from paritybit.reports.summary import MOST_LINES, summarise, text

from paritybit.__main__ import main
from properties.support.reports.records import SAMPLES, failed_explainer, green, hostile, many, red


def test_the_command_prints_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.write(red(), tmp_path / "run.json")
    assert main(["summary", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out == summarise(red())


def attention(summary: str) -> list[str]:
    """Return the lines of what needs attention."""
    return [line for line in summary.splitlines() if line.startswith("- ")]


def test_a_summary_begins_with_the_verdict_and_what_needs_attention() -> None:
    lines = summarise(red()).splitlines()
    assert lines[0] == "## ✕ paritybit: red"
    assert lines[2] == red().message
    missed = "- **missed**: nothing was found (1 trial): swa\\_int64\\@decode"
    assert any(missed in line for line in attention(summarise(red())))
    assert "  - But SWA slot 9 is request 1’s, which is parked and alive" in summarise(red())
    assert attention(summarise(green())) == []


def test_a_summary_says_that_the_explainer_failed() -> None:
    lines = attention(summarise(failed_explainer()))
    assert "- swa\\_pad\\@decode \\(generated\\): the explainer failed" in lines


def test_a_summary_has_a_row_for_each_bug_and_a_column_for_each_runner() -> None:
    lines = summarise(green()).splitlines()
    start = lines.index("| bug | decode | target\\_verify | cpu\\_graph | piecewise |")
    assert lines[start + 1] == "| --- | --- | --- | --- | --- |"
    assert lines[start + 2] == "| swa\\_pad | 6/2 | · | – | · |"
    assert all(line.endswith("|") for line in lines if line.startswith("|"))


def test_a_summary_of_very_many_faults_of_one_cause_names_some() -> None:
    record = many(MOST_LINES * 2)
    record = replace(record, bugs=tuple(replace(hunt, status="missed") for hunt in record.bugs))
    (group,) = [one for one in groups(record) if len(one.failures) > MOST_LINES]
    assert text(group.others) in summarise(record)
    assert re.search(r"; and \d+ more$", group.others)


def test_a_summary_of_very_many_causes_is_cut_short() -> None:
    record = many(MOST_LINES * 2)
    hunts = tuple(
        replace(hunt, status="failed", finding=None, error=f"RuntimeError: {number}")
        for number, hunt in enumerate(record.bugs)
    )
    lines = attention(summarise(replace(record, bugs=hunts)).split("### Needs attention")[0])
    assert len(lines) == MOST_LINES + 1
    assert re.fullmatch(r"- and \d+ more causes", lines[-1])


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_of_a_record_makes_markup_in_a_summary(name: str) -> None:
    assert not re.search(r"(?<!\\)[<>&`\[\]]", summarise(SAMPLES[name]))


def test_every_character_that_makes_markup_is_escaped() -> None:
    """A vertical bar ends a cell of a table."""
    for character in "\\`*_{}[]()<>#|!&~@":
        assert text(f"a{character}b") == f"a\\{character}b"
    assert text("a\n\n# b") == r"a \# b"


def test_hostile_texts_make_no_heading_in_a_summary() -> None:
    heads = [
        [line for line in summarise(record).splitlines() if line.startswith("#")]
        for record in (hostile(), red())
    ]
    assert heads[0] == heads[1]
