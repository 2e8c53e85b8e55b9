"""Tests of two runs side by side, and of a run's Markdown summary."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from rich.console import Console

from harness.__main__ import main
from properties.sample_records import (
    HOSTILE,
    SAMPLES,
    Record,
    bug,
    green,
    hostile,
    many,
    red,
    traffic_finding,
    without_finding,
)
from reports.comparison import Comparison, compare_runs
from reports.page import render_comparison
from reports.summary import MOST_TOLD, summarise
from reports.terminal import tables


def kinds(comparison: Comparison) -> dict[str, str]:
    """Return the kind of each change by the name of its hunt, settings apart."""
    return {change.name.split(" ")[0]: change.kind for change in comparison.changes}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    record = SAMPLES[name]()
    comparison = compare_runs(record, deepcopy(record))
    assert (comparison.changes, comparison.untried, comparison.environment) == ((), (), ())
    assert not comparison.alarming
    assert all(row.before == row.after for row in (*comparison.coverage, *comparison.speed))


def test_a_finding_of_the_later_run_alone_is_new() -> None:
    comparison = compare_runs(without_finding(green(), 2), green())
    assert kinds(comparison) == {"loc_memo_capture@decode": "new"}
    (change,) = comparison.changes
    assert change.before == "missed"
    assert change.after == "caught: logits_parity, kv_parity, captured_path, in 2 steps"
    assert change.cards[0] is None
    assert change.cards[1] is not None
    assert comparison.alarming


def test_a_finding_of_the_earlier_run_alone_is_gone_and_alarms_nobody() -> None:
    comparison = compare_runs(green(), without_finding(green(), 2))
    assert kinds(comparison) == {"loc_memo_capture@decode": "gone"}
    assert not comparison.alarming


def test_a_new_finding_on_the_clean_build_is_new() -> None:
    after = green()
    after["clean"][4] |= {"status": "red", "finding": traffic_finding()}
    comparison = compare_runs(green(), after)
    assert kinds(comparison) == {"clean@decode": "new"}
    assert comparison.changes[0].after == "red: kv_parity, in 16 steps"


def shorter(finding: Record) -> None:
    """Drop a step of a finding's schedule."""
    del finding["schedule"]["steps"][-1]


def elsewhere(finding: Record) -> None:
    """Let a finding's first violation be seen at another step."""
    finding["violations"][0]["step"] += 1


def otherwise(finding: Record) -> None:
    """Let a finding's first violation be told with other words."""
    finding["violations"][0]["message"] += "!"


def unexplained(finding: Record) -> None:
    """Take a finding's explanation away."""
    finding["explanation"] = None


def fewer(finding: Record) -> None:
    """Let one property less see a finding."""
    del finding["violations"][-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, "schedule"),
        (elsewhere, "step"),
        (otherwise, "what was seen"),
        (unexplained, "proof"),
        (fewer, "properties, step, what was seen"),
    ],
)
def test_a_finding_that_differs_in_anything_is_changed(
    change: Callable[[Record], None], message: str
) -> None:
    after = green()
    change(after["bugs"][0]["finding"])
    comparison = compare_runs(green(), after)
    assert [each.kind for each in comparison.changes] == ["changed"]
    assert comparison.changes[0].differs == message
    assert comparison.alarming


def test_a_hunt_without_a_finding_that_ended_otherwise_is_changed() -> None:
    after = green()
    after["bugs"][-1]["status"] = "vacuous"
    comparison = compare_runs(green(), after)
    assert kinds(comparison) == {"loc_memo_warning.entry@decode": "changed"}
    assert comparison.changes[0].differs == "status"


def test_a_hunt_of_the_earlier_run_alone_was_not_tried_and_is_not_gone() -> None:
    after = green()
    after["bugs"] = after["bugs"][1:]
    comparison = compare_runs(green(), after)
    assert comparison.changes == ()
    assert [name.split(" ")[0] for name in comparison.untried] == ["swa_pad@decode"]


def test_a_finding_of_a_hunt_of_the_later_run_alone_is_new() -> None:
    after = green()
    after["bugs"].append(bug("swa_pad", "caught", "target_verify"))
    assert kinds(compare_runs(green(), after)) == {"swa_pad@target_verify": "new"}


def test_hunts_are_the_same_by_their_settings_whatever_their_order_and_device() -> None:
    after = green()
    after["bugs"].reverse()
    after["clean"].reverse()
    for hunt in [*after["clean"], *after["bugs"]]:
        hunt["trial"]["device"] = "cuda"
    comparison = compare_runs(green(), after)
    assert (comparison.changes, comparison.untried) == ((), ())


def test_coverage_speed_and_environment_stand_side_by_side() -> None:
    before, after = green(), green() | {"seconds": 12.0, "seed": 7}
    after["environment"] |= {"torch": "2.14.0"}
    for trial in after["clean"]:
        trial["events"].pop("pool full", None)
        trial["seconds"] *= 2
    comparison = compare_runs(before, after)
    coverage = {row.name: (row.before, row.after) for row in comparison.coverage}
    assert coverage["pool full"] == ("3", "0")
    assert coverage["padded replay"] == ("1,213", "1,213")
    speed = {row.name: (row.before, row.after) for row in comparison.speed}
    assert speed["time taken"] == ("5 min 41 s", "12.0 s")
    twice, once = map(int, speed["decode, clean steps a second"])
    assert twice == pytest.approx(2 * once, abs=1)
    environment = {row.name: (row.before, row.after) for row in comparison.environment}
    assert environment == {"seed": ("0", "7"), "torch": ("2.13.0+cpu", "2.14.0")}


def printed(comparison: Comparison) -> str:
    """Return what the terminal shows."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*tables(comparison))
    return capture.get()


def test_the_terminal_names_what_is_new_and_what_was_never_reached() -> None:
    after = green()
    for trial in after["clean"]:
        trial["events"].pop("pool full", None)
    message = printed(compare_runs(without_finding(green(), 2), after))
    assert re.search(r"new +loc_memo_capture@decode \(.*\) +missed +caught: ", message)
    assert re.search(r"pool full +3 +0", message)
    assert "padded replay" not in message


def test_hostile_texts_are_shown_in_a_comparison_and_do_nothing() -> None:
    before, after = without_finding(hostile(), 0), hostile()
    comparison = compare_runs(before, after)
    text = render_comparison(before, after, comparison)
    assert text.count("<script>") == 1
    assert HOSTILE not in text
    assert "[bold]" not in printed(comparison)
    marked = deepcopy(after)
    marked["bugs"][0]["trial"]["preset"] = "[bold]x[/bold]"
    assert "[bold]x[/bold]" in printed(compare_runs(before, marked))


def files(folder: Path, before: Record, after: Record) -> list[str]:
    """Write both records; return the command line that compares them."""
    for name, record in (("before.json", before), ("after.json", after)):
        (folder / name).write_text(json.dumps(record))
    page = str(folder / "pages" / "compare.html")
    return ["compare", str(folder / "before.json"), str(folder / "after.json"), "--page", page]


@pytest.mark.parametrize(("turned", "code"), [(False, 1), (True, 0)])
def test_the_command_compares_and_fails_for_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], turned: bool, code: int
) -> None:
    runs = [without_finding(green(), 2), green()]
    assert main(files(tmp_path, *(runs[::-1] if turned else runs))) == code
    assert ("1 gone" if turned else "1 new") in capsys.readouterr().out
    page = (tmp_path / "pages" / "compare.html").read_text()
    assert page.count('<details class="card"') == 1
    assert ("Nothing new" if turned else "Differs") in page


@pytest.mark.parametrize("key", ["clean", "bugs", "environment", "properties"])
def test_the_command_refuses_a_record_that_lacks_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    after = green()
    del after[key]
    assert main(files(tmp_path, green(), after)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "is not a whole run record" in message


def test_the_command_refuses_what_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(tmp_path, green(), green())
    (tmp_path / "after.json").write_text("{")
    assert main(arguments) == 2
    assert "after.json is not whole JSON text" in capsys.readouterr().err


@pytest.mark.parametrize("name", SAMPLES)
def test_the_command_prints_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    record = SAMPLES[name]()
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert main(["summary", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out == summarise(record)


def test_a_summary_begins_with_the_verdict_and_what_needs_attention() -> None:
    lines = summarise(red()).splitlines()
    assert lines[0] == "## ✕ paritybit: red"
    assert lines[2] == red()["message"]
    attention = [line for line in lines if line.startswith("- ")]
    assert any("swa\\_int64\\@decode \\(generated\\): missed" in line for line in attention)
    assert not [line for line in summarise(green()).splitlines() if line.startswith("- ")]


def test_a_summary_has_a_row_for_each_bug_and_a_column_for_each_runner() -> None:
    lines = summarise(green()).splitlines()
    start = lines.index("| bug | decode | target\\_verify | cpu\\_graph | piecewise |")
    assert lines[start + 1] == "| --- | --- | --- | --- | --- |"
    assert lines[start + 2] == "| swa\\_pad | 6/2 | · | – | · |"
    tables_ = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables_)


def test_a_summary_of_very_many_faults_is_cut_short() -> None:
    record = many(MOST_TOLD * 2)
    for hunt in record["bugs"]:
        hunt["status"] = "missed"
    attention = [line for line in summarise(record).splitlines() if line.startswith("- ")]
    assert len(attention) == MOST_TOLD + 1
    assert re.fullmatch(r"- and \d+ more", attention[-1])


def test_hostile_texts_make_no_markup_in_a_summary() -> None:
    message = summarise(hostile())
    assert not re.search(r"(?<!\\)[<>&`\[\]]", message)
    heads = [line for line in message.splitlines() if line.startswith("#")]
    assert heads == [line for line in summarise(red()).splitlines() if line.startswith("#")]


def test_the_terminal_shows_no_empty_table() -> None:
    assert [table.title for table in tables(compare_runs(green(), green()))] == ["speed"]
