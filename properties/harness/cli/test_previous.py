"""The page of a run and the terminal offer the run before it: which that is, and what differs."""

import errno
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.cli.folders import earlier_records, swap_link
from paritybit.harness.cli.report import previous_of
from paritybit.harness.records import record as run_record
from paritybit.harness.records.schema import Record
from paritybit.reports.compared.previous import Previous
from paritybit.reports.page import render

from paritybit.__main__ import main
from properties.support.harness.command_line import OK
from properties.support.reports.pages import Page
from properties.support.reports.records import green, interrupted, red

FIRST, SECOND, THIRD = "20251122T105000Z", "20251122T105000-2Z", "20251122T105000-10Z"
"""Folders of runs of one second, in their order."""


def written(out: Path, name: str, record: Record) -> Path:
    """Write the record of a run into its folder; return its path."""
    path = out / name / "run.json"
    run_record.write(record, path)
    return path


def before(path: Path, record: Record) -> Previous:
    """Return the run before one."""
    found = previous_of(path, record)
    assert found is not None
    return found


def test_the_run_before_is_the_last_of_its_kind_in_the_folder(tmp_path: Path) -> None:
    """By time, and by number within a second; not `latest`, and nothing of another name."""
    first, third = written(tmp_path, FIRST, green()), written(tmp_path, THIRD, green())
    (tmp_path / SECOND).mkdir()
    second = tmp_path / SECOND / "watch.json"
    second.write_text("{}")
    written(tmp_path, "kept", green())
    (tmp_path / "20251122T105000-3Z").mkdir()
    (tmp_path / "notes.txt").write_text("")
    swap_link(third.parent)
    assert earlier_records(third) == [first]
    assert not earlier_records(second)
    assert not earlier_records(first)
    assert not earlier_records(tmp_path / "kept" / "run.json")
    latest = tmp_path / "latest" / "run.json"
    assert earlier_records(latest.resolve()) == [first]
    assert before(latest, green()).name == FIRST


@pytest.mark.parametrize(
    ("look", "private", "seen"), [("is_file", SECOND, [FIRST]), ("iterdir", "", [])]
)
def test_a_run_that_is_not_mine_to_see_is_left_out(
    look: str, private: str, seen: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an output folder that several users share. An error here would lose a whole run."""
    *_, mine = [written(tmp_path, name, green()) for name in (FIRST, SECOND, THIRD)]
    before = getattr(Path, look)

    def refuse(path: Path) -> Any:
        if path.is_relative_to(tmp_path / private):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return before(path)

    monkeypatch.setattr(Path, look, refuse)
    assert [record.parent.name for record in earlier_records(mine)] == seen


def test_the_page_says_what_is_new_and_links_to_the_run_before(tmp_path: Path) -> None:
    first, second = written(tmp_path, FIRST, green()), written(tmp_path, SECOND, red())
    (first.parent / "index.html").write_text("")
    previous = before(second, red())
    page = Page(render(red(), previous))
    assert "previous" in page.ids
    assert "#previous" in page.hrefs
    assert f"../{FIRST}/index.html" in page.hrefs
    assert page.dead_links == set()
    text = page.text
    head, _, section = text.partition("Compared with the previous run")[2].partition(
        "Compared with the previous run"
    )
    assert head.startswith(" : Worse: ")
    assert "Worse: " in section
    assert "new wrong in the later run" in section
    assert "clean@decode" in section
    assert "abc1234, on CPU, 2 cores" in section
    folder = tmp_path.name
    command = f"paritybit report {folder}/{FIRST}/run.json {folder}/{SECOND}/run.json"
    assert previous.command == command
    assert command in section


def test_a_run_that_was_cut_short_before_or_now_is_compared_all_the_same(tmp_path: Path) -> None:
    first = written(tmp_path, FIRST, interrupted())
    second = written(tmp_path, SECOND, green())
    assert before(second, green()).sentence.startswith("No worse: ")
    run_record.write(green(), first)
    sentence = before(second, interrupted()).sentence
    assert sentence.startswith("No verdict: ")
    assert sentence.endswith("the later run was interrupted")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "run.json is not valid JSON"),
        ('{"format": "paritybit-run", "version": 3}', "run.json has version 3; this build reads 5"),
        ('{"format": "paritybit-run", "version": 5}', "run.json is not a complete run record"),
        ("[]", "run.json is not a paritybit-run file"),
    ],
)
def test_a_record_that_cannot_be_read_is_told_of_and_not_passed_over(
    tmp_path: Path, text: str, why: str
) -> None:
    """As one of an older build, though an older one still might be readable."""
    written(tmp_path, "20251121T105000Z", green())
    written(tmp_path, FIRST, green()).write_text(text)
    previous = before(written(tmp_path, SECOND, green()), green())
    assert previous.name == FIRST
    assert previous.sentence.startswith(f"cannot be compared: {why}")
    page = Page(render(green(), previous))
    assert why in page.text
    assert page.dead_links == set()


def test_the_page_is_made_again_with_the_run_before(tmp_path: Path) -> None:
    """Beside its record; elsewhere a link to the run before would lead nowhere."""
    written(tmp_path, FIRST, green())
    second = written(tmp_path, SECOND, red())
    assert main(["report", str(second)]) == OK
    page = second.with_name("index.html").read_text()
    assert page == render(red(), before(second, red()))
    assert 'id="previous"' in page
    assert main(["report", str(second), "--page", str(tmp_path / "page.html")]) == OK
    assert 'id="previous"' not in (tmp_path / "page.html").read_text()
