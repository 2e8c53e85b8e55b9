"""Tests of two runs side by side: as data, as a page, on the terminal and from their files."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.__main__ import main
from harness.records import record as records
from harness.records.schema import Finding, Record
from properties.support.reports.records import (
    HOSTILE,
    SAMPLES,
    bug,
    finding_of,
    green,
    hostile,
    traffic_finding,
    trial,
    with_bug,
    with_clean,
    without_event,
    without_finding,
)
from reports.comparison import Comparison, compare_runs
from reports.page import render_comparison
from reports.terminal import tables


def kinds(comparison: Comparison) -> dict[str, str]:
    """Return the kind of each change by the name of its hunt, settings apart."""
    return {change.name.split(" ")[0]: change.kind for change in comparison.changes}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    comparison = compare_runs(SAMPLES[name], SAMPLES[name])
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
    after = with_clean(green(), 4, status="red", finding=traffic_finding())
    comparison = compare_runs(green(), after)
    assert kinds(comparison) == {"clean@decode": "new"}
    assert comparison.changes[0].after == "red: kv_parity, in 16 steps"


def shorter(finding: Finding) -> Finding:
    """Drop a step of a finding's schedule."""
    schedule = finding.schedule
    return replace(finding, schedule=replace(schedule, steps=schedule.steps[:-1]))


def elsewhere(finding: Finding) -> Finding:
    """Let a finding's first violation be seen at another step."""
    lead, *others = finding.violations
    return replace(finding, violations=(replace(lead, step=lead.step + 1), *others))


def otherwise(finding: Finding) -> Finding:
    """Let a finding's first violation be told with other words."""
    lead, *others = finding.violations
    return replace(finding, violations=(replace(lead, message="otherwise"), *others))


def unexplained(finding: Finding) -> Finding:
    """Take a finding's explanation away."""
    return replace(finding, explanation=None)


def failed(finding: Finding) -> Finding:
    """Let the explainer of a finding fail."""
    return replace(finding, explanation=None, error="ValueError")


def fewer(finding: Finding) -> Finding:
    """Let one property less see a finding."""
    return replace(finding, violations=finding.violations[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, "schedule"),
        (elsewhere, "step"),
        (otherwise, "what was seen"),
        (unexplained, "proof"),
        (failed, "proof, error of the explainer"),
        (fewer, "properties, step, what was seen"),
    ],
)
def test_a_finding_that_differs_in_anything_is_changed(
    change: Callable[[Finding], Finding], message: str
) -> None:
    after = with_bug(green(), 0, finding=change(finding_of(green(), 0)))
    comparison = compare_runs(green(), after)
    assert [found.kind for found in comparison.changes] == ["changed"]
    assert comparison.changes[0].differs == message
    assert comparison.alarming


def test_a_hunt_without_a_finding_that_ended_otherwise_is_changed() -> None:
    comparison = compare_runs(green(), with_bug(green(), -1, status="vacuous"))
    assert kinds(comparison) == {"loc_memo_warning.entry@decode": "changed"}
    assert comparison.changes[0].differs == "status"


def test_a_hunt_of_the_earlier_run_alone_was_not_tried_and_is_not_gone() -> None:
    comparison = compare_runs(green(), replace(green(), bugs=green().bugs[1:]))
    assert comparison.changes == ()
    assert [name.split(" ")[0] for name in comparison.untried] == ["swa_pad@decode"]


def test_a_finding_of_a_hunt_of_the_later_run_alone_is_new() -> None:
    further = bug("swa_pad", "caught", "target_verify")
    after = replace(green(), bugs=(*green().bugs, further))
    assert kinds(compare_runs(green(), after)) == {"swa_pad@target_verify": "new"}


def test_hunts_are_the_same_by_their_settings_whatever_their_order_and_device() -> None:
    record = green()
    after = replace(
        record,
        clean=tuple(replace(h, trial=replace(h.trial, device="cuda")) for h in record.clean[::-1]),
        bugs=tuple(replace(h, trial=replace(h.trial, device="cuda")) for h in record.bugs[::-1]),
    )
    comparison = compare_runs(record, after)
    assert (comparison.changes, comparison.untried) == ((), ())


def test_coverage_speed_and_environment_stand_side_by_side() -> None:
    before, after = green(), without_event(green(), "pool full")
    after = replace(
        after,
        seconds=12.0,
        seed=7,
        environment=replace(after.environment, torch="2.14.0"),
        clean=tuple(replace(row, seconds=2 * row.seconds) for row in after.clean),
    )
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
    after = without_event(green(), "pool full")
    message = printed(compare_runs(without_finding(green(), 2), after))
    assert re.search(r"new +loc_memo_capture@decode \(.*\) +missed +caught: ", message)
    assert re.search(r"pool full +3 +0", message)
    assert "padded replay" not in message


def test_the_terminal_shows_no_empty_table() -> None:
    assert [table.title for table in tables(compare_runs(green(), green()))] == ["speed"]


def test_hostile_texts_are_shown_in_a_comparison_and_do_nothing() -> None:
    before, after = without_finding(hostile(), 0), hostile()
    comparison = compare_runs(before, after)
    text = render_comparison(before, after, comparison)
    assert text.count("<script>") == 1
    assert HOSTILE not in text
    assert "[bold]" not in printed(comparison)
    marked = with_bug(after, 0, trial=trial(bugs=("swa_pad",), preset="[bold]x[/bold]"))
    assert "[bold]x[/bold]" in printed(compare_runs(before, marked))


def command_line(folder: Path, before: Record, after: Record) -> list[str]:
    """Write both records; return the command line that compares them."""
    records.write(before, folder / "before.json")
    records.write(after, folder / "after.json")
    page = str(folder / "pages" / "compare.html")
    return ["compare", str(folder / "before.json"), str(folder / "after.json"), "--page", page]


@pytest.mark.parametrize(("turned", "code"), [(False, 1), (True, 0)])
def test_the_command_compares_and_fails_for_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], turned: bool, code: int
) -> None:
    runs = [without_finding(green(), 2), green()]
    assert main(command_line(tmp_path, *(runs[::-1] if turned else runs))) == code
    assert ("1 gone" if turned else "1 new") in capsys.readouterr().out
    page = (tmp_path / "pages" / "compare.html").read_text()
    assert page.count('<details class="card"') == 1
    assert ("Nothing new" if turned else "Differs") in page


def test_the_command_refuses_what_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command_line(tmp_path, green(), green())
    (tmp_path / "after.json").write_text("{")
    assert main(arguments) == 2
    assert "after.json is not whole JSON text" in capsys.readouterr().err
