"""Tests of a run's Markdown summary."""

import re
from pathlib import Path

import pytest
from paritybit.harness.records import record as records
from paritybit.reports.summary import summarise, text

from paritybit.__main__ import main
from properties.support.reports.records import SAMPLES, green, red


def test_the_command_prints_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.write(red(), tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "--markdown"]) == 0
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


def test_a_summary_has_a_row_for_each_bug_and_a_column_for_each_runner() -> None:
    lines = summarise(green()).splitlines()
    start = lines.index("| bug | decode | target\\_verify | cpu\\_graph | piecewise |")
    assert lines[start + 1] == "| --- | --- | --- | --- | --- |"
    assert lines[start + 2] == "| swa\\_pad | 6/2 | · | – | · |"
    assert all(line.endswith("|") for line in lines if line.startswith("|"))


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_of_a_record_makes_markup_in_a_summary(name: str) -> None:
    assert not re.search(r"(?<!\\)[<>&`\[\]]", summarise(SAMPLES[name]))


def test_every_character_that_makes_markup_is_escaped() -> None:
    """A vertical bar ends a cell of a table."""
    for character in "\\`*_{}[]()<>#|!&~@":
        assert text(f"a{character}b") == f"a\\{character}b"
    assert text("a\n\n# b") == r"a \# b"
