"""Tests of two runs side by side: as data, as a page, on the terminal and from their files."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.records import record as records
from paritybit.harness.records.schema import Finding, Record
from paritybit.reports.causes import title_of
from paritybit.reports.compared.kinds import GRAVITY, KINDS, gravity
from paritybit.reports.compared.runs import Comparison, compare_runs
from paritybit.reports.compared.terminal import change_lines, tables
from paritybit.reports.page import render, render_comparison
from rich.console import Console

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, FINDING, MALFORMED, OK, edit
from properties.support.places import ROOT
from properties.support.reports.records import (
    HOSTILE,
    LOCATION,
    SAMPLES,
    explanation,
    finding_of,
    green,
    hostile,
    suspects,
    swa_pad_finding,
    traceback_of,
    traffic_finding,
    trial,
    warning_finding,
    with_bug,
    with_clean,
    without_event,
    without_finding,
)


def kinds(comparison: Comparison) -> dict[str, str]:
    """Return the kind of each change by the name of its hunt, settings apart."""
    return {change.name.split(" ")[0]: change.kind for change in comparison.changes}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    comparison = compare_runs(SAMPLES[name], SAMPLES[name])
    assert {change.kind for change in comparison.changes} <= {"still there"}
    assert (comparison.lost, comparison.added, comparison.environment) == ((), (), ())
    assert not comparison.alarming
    assert not comparison.unsettled
    assert comparison.verdict == "No worse"
    assert all(row.before == row.after for row in (*comparison.coverage, *comparison.speed))


CLEAN, HUNT, MASKED = "clean trial", "hunt", "hunt of a bug that cannot show"
RIGHT = {CLEAN: "green", HUNT: "caught", MASKED: "unaffected"}
WRONG = {
    CLEAN: ("red", "undeclared state", "vacuous", "warned at capture", "device lost"),
    HUNT: (
        *("missed", "wrong property", "fails without the bug too", "vacuous", "not reproduced"),
        *("undeclared state", "device lost"),
    ),
    MASKED: ("affected after all",),
}
"""Every way in which a trial or a hunt can end that is not as it should be."""


def ended(what: str, status: str | None) -> Record:
    """Return a record in which one trial or hunt ended so, or, with None, was not tried."""
    record = green()
    if what == CLEAN:
        if status is None:
            return replace(record, clean=record.clean[:4] + record.clean[5:])
        found = traffic_finding() if status in {"red", "undeclared state"} else None
        error = traceback_of("ValueError: x") if status == "failed" else None
        return with_clean(record, 4, status=status, finding=found, error=error)
    place = 2 if what == HUNT else len(record.bugs) - 1
    if status is None:
        return replace(record, bugs=record.bugs[:place] + record.bugs[place + 1 :])
    kept = {} if status in {"caught", "unaffected"} else {"finding": None}
    return with_bug(record, place, status=status, **kept)


def became(what: str, before: str | None, after: str | None) -> Comparison:
    """Compare two records that differ in how one trial or hunt ended."""
    return compare_runs(ended(what, before), ended(what, after))


@pytest.mark.parametrize("what", WRONG)
def test_what_becomes_of_a_hunt_is_told_of_every_end_that_it_can_have(what: str) -> None:
    """And the exit code is 1 for what is new or worse, and 125 for what nobody knows any more."""
    right = RIGHT[what]
    for wrong in WRONG[what]:
        for before, after, kind, alarming, unsettled in (
            (right, wrong, "new", True, False),
            (None, wrong, "new", True, False),
            ("failed", wrong, "new", True, False),
            (wrong, wrong, "still there", False, False),
            (wrong, right, "fixed", False, False),
            (wrong, "failed", "undecided", False, True),
            (wrong, None, "gone", False, True),
            (right, "failed", "undecided", False, True),
            (None, "failed", "undecided", False, True),
            ("failed", "failed", "still there", False, False),
            ("failed", right, "fixed", False, False),
        ):
            comparison = became(what, before, after)
            said = (before, after)
            assert [change.kind for change in comparison.changes] == [kind], said
            assert (comparison.alarming, comparison.unsettled) == (alarming, unsettled), said


@pytest.mark.parametrize("what", WRONG)
def test_a_hunt_that_is_right_in_one_run_and_not_tried_in_the_other(what: str) -> None:
    lost, added = became(what, RIGHT[what], None), became(what, None, RIGHT[what])
    assert (lost.changes, len(lost.lost), lost.verdict) == ((), 1, "No verdict")
    assert (added.changes, len(added.added), added.verdict) == ((), 1, "No worse")


def test_what_ends_more_gravely_is_worse_and_what_ends_less_gravely_is_not() -> None:
    assert kinds(became(HUNT, "vacuous", "missed")) == {"loc_memo_capture@decode": "worse"}
    assert kinds(became(HUNT, "missed", "vacuous")) == {"loc_memo_capture@decode": "still there"}
    assert became(CLEAN, "vacuous", "red").alarming


def explained_by(buffer: str | None) -> Record:
    """Return a record whose clean trial is red, for a stale input or for no reason known."""
    found = swa_pad_finding()
    explained = None
    if buffer is not None:
        explained = explanation(suspects=suspects(replace(LOCATION, holder=buffer)))
    return with_clean(green(), 4, status="red", finding=replace(found, explanation=explained))


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("out_cache_loc_swa", "out_cache_loc_swa", "still there"),
        ("out_cache_loc_swa", "req_pool_indices", "worse"),
        ("out_cache_loc_swa", None, "worse"),
        (None, "out_cache_loc_swa", "still there"),
        (None, None, "still there"),
    ],
)
def test_what_is_wrong_for_another_reason_than_before_is_worse(
    before: str | None, after: str | None, kind: str
) -> None:
    comparison = compare_runs(explained_by(before), explained_by(after))
    assert kinds(comparison) == {"clean@decode": kind}


def shorter(finding: Finding) -> Finding:
    """Drop a step of a finding's schedule."""
    schedule = finding.schedule
    return replace(finding, schedule=replace(schedule, steps=schedule.steps[:-1]))


def otherwise(finding: Finding) -> Finding:
    """Let a finding's first violation be told with other words."""
    lead, *others = finding.violations
    return replace(finding, violations=(replace(lead, message="otherwise"), *others))


def unexplained(finding: Finding) -> Finding:
    """Take a finding's explanation away."""
    return replace(finding, explanation=None)


def fewer(finding: Finding) -> Finding:
    """Let one property less see a finding."""
    return replace(finding, violations=finding.violations[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, "schedule"),
        (otherwise, "what was seen"),
        (unexplained, "proof"),
        (fewer, "properties, step, what was seen"),
    ],
)
def test_a_bug_that_is_caught_otherwise_is_changed_and_alarms_nobody(
    change: Callable[[Finding], Finding], message: str
) -> None:
    after = with_bug(green(), 0, finding=change(finding_of(green(), 0)))
    comparison = compare_runs(green(), after)
    assert [found.kind for found in comparison.changes] == ["changed"]
    assert comparison.changes[0].differs == message
    assert not comparison.alarming
    assert not comparison.unsettled


def on_another_device(record: Record) -> Record:
    """Return a record as of a run on a GPU."""
    environment = replace(record.environment, device="cuda", device_name="NVIDIA H200")
    return replace(record, environment=environment)


@pytest.mark.parametrize("change", [shorter, otherwise, unexplained, fewer])
def test_what_differs_across_devices_alone_is_no_change(
    change: Callable[[Finding], Finding],
) -> None:
    """Bits are a device's own, and with them the step and the words of what they show."""
    after = with_bug(green(), 0, finding=change(finding_of(green(), 0)))
    assert compare_runs(green(), on_another_device(after)).changes == ()
    both = [on_another_device(record) for record in (green(), after)]
    assert [found.kind for found in compare_runs(*both).changes] == ["changed"]


def test_a_fault_on_one_device_alone_is_new_all_the_same() -> None:
    after = on_another_device(ended(CLEAN, "red"))
    assert kinds(compare_runs(green(), after)) == {"clean@decode": "new"}


def test_of_two_hunts_of_one_kind_the_graver_counts() -> None:
    record, row = green(), ended(CLEAN, "red").clean[4]
    for clean in ((*record.clean, row), (row, *record.clean)):
        assert kinds(compare_runs(record, replace(record, clean=clean))) == {"clean@decode": "new"}


def test_findings_are_ranked_by_gravity() -> None:
    """First by what became of them, then by how they ended, then by what they violate."""
    before = ended(MASKED, "affected after all")
    after = with_bug(ended(HUNT, "missed"), 1, status="vacuous", finding=None)
    after = with_clean(after, 5, status="red", finding=warning_finding())
    after = with_clean(after, 4, status="red", finding=traffic_finding())
    after = with_bug(after, 0, finding=shorter(finding_of(green(), 0)))
    comparison = compare_runs(before, after)
    statuses = [(one.kind, one.after.partition(",")[0]) for one in comparison.changes]
    assert statuses == [
        ("new", "red: kv_parity"),
        ("new", "red: log_hygiene"),
        ("new", "missed"),
        ("new", "vacuous"),
        ("changed", comparison.changes[4].after.partition(",")[0]),
        ("fixed", "unaffected"),
    ]
    order = list(KINDS)
    places = [order.index(one.kind) for one in comparison.changes]
    assert places == sorted(places)


def test_wrong_results_are_graver_than_a_log_line_and_an_unknown_property_is_between() -> None:
    ranks = [gravity([name]) for name in ("logits_parity", "of_tomorrow", "log_hygiene")]
    assert ranks == sorted(set(ranks))
    assert gravity(["log_hygiene", "logits_parity"]) == gravity(["logits_parity"])
    assert gravity([]) > gravity(["log_hygiene"])
    assert set(PROPERTIES) - {name for names in GRAVITY for name in names} == set()


def test_a_state_that_is_never_reached_any_more_is_new_and_one_reached_again_is_mended() -> None:
    """As a run is red for it: else a run that proves less would be as good."""
    without = without_event(green(), "pool full")
    (change,) = compare_runs(green(), without).changes
    assert (change.kind, change.name) == ("new", "coverage: pool full")
    assert (change.before, change.after) == ("reached 3 times", "never reached")
    assert [one.kind for one in compare_runs(without, green()).changes] == ["fixed"]
    assert [one.kind for one in compare_runs(without, without).changes] == ["still there"]
    cut = replace(green(), verdict="interrupted")
    assert [one.kind for one in compare_runs(without, cut).changes] == ["gone"]
    cut = replace(without, verdict="interrupted")
    assert compare_runs(green(), cut).changes == ()


def test_a_run_that_was_cut_short_says_so_and_proves_nothing_of_what_it_did_not_try() -> None:
    cut = replace(green(), verdict="interrupted", bugs=green().bugs[:1])
    comparison = compare_runs(green(), cut)
    assert not comparison.alarming
    assert comparison.verdict == "No verdict"
    assert comparison.message.endswith("the later run was interrupted")
    back = compare_runs(cut, green())
    assert back.verdict == "No worse"
    assert len(back.added) == len(green().bugs) - 1


def test_runs_that_share_no_hunt_come_to_no_verdict() -> None:
    record = green()
    bugs, clean = replace(record, clean=()), replace(record, bugs=())
    assert compare_runs(bugs, clean).verdict == "No verdict"
    assert f"{len(record.bugs)} only in the earlier run" in compare_runs(bugs, clean).message


def of_shape(shape: str, record: Record) -> Record:
    """Return a record of which all trials are of a shape."""
    return replace(
        record,
        clean=tuple(replace(row, trial=replace(row.trial, shape=shape)) for row in record.clean),
        bugs=tuple(replace(row, trial=replace(row.trial, shape=shape)) for row in record.bugs),
    )


def test_a_trial_of_a_larger_model_is_another_one_and_says_so() -> None:
    """Its hunts are none of a tiny one's; its names, its case and its row of the page say it."""
    record, tiny = SAMPLES["red"], green()
    assert compare_runs(tiny, of_shape("mid", tiny)).verdict == "No verdict"
    larger = of_shape("mid", record)
    preset = record.bugs[0].trial.preset
    assert f"({preset} mid, " in title_of(larger.bugs[0]) and f"({preset}, " in title_of(
        record.bugs[0]
    )
    page = render(larger)
    assert "&#34;shape&#34;: &#34;mid&#34;" in page and " mid</th>" in page
    assert "&#34;shape&#34;" not in render(record)


def test_a_run_that_turned_red_is_never_no_worse() -> None:
    """Of every two sample records: whatever makes the later red is new, worse or was there."""
    for before in SAMPLES.values():
        for after in SAMPLES.values():
            if before.verdict == "green" and after.verdict == "red":
                failed = any(row.status == "failed" for row in (*after.clean, *after.bugs))
                assert compare_runs(before, after).verdict == ("No verdict" if failed else "Worse")


def test_hunts_are_the_same_by_their_settings_whatever_their_order_and_device() -> None:
    record = green()
    after = replace(
        record,
        clean=tuple(replace(h, trial=replace(h.trial, device="cuda")) for h in record.clean[::-1]),
        bugs=tuple(replace(h, trial=replace(h.trial, device="cuda")) for h in record.bugs[::-1]),
    )
    comparison = compare_runs(record, after)
    assert (comparison.changes, comparison.lost, comparison.added) == ((), (), ())


def printed(comparison: Comparison) -> str:
    """Return what the terminal shows."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(*tables(comparison))
    return "\n".join([capture.get(), *change_lines(comparison)])


def test_hostile_texts_are_shown_in_a_comparison_and_do_nothing() -> None:
    before, after = without_finding(hostile(), 0), hostile()
    comparison = compare_runs(before, after)
    text = render_comparison(before, after, comparison)
    assert text.count("<script>") == 1
    assert HOSTILE not in text
    assert "[bold]" not in printed(comparison)
    marked = with_bug(after, 0, trial=trial(bugs=("swa_pad",), preset="[bold]x[/bold]"))
    assert "[bold]x[/bold]" in printed(compare_runs(before, marked))
    assert HOSTILE not in text


def command_line(folder: Path, before: Record, after: Record) -> list[str]:
    """Write both records; return the command line that compares them."""
    records.write(before, folder / "before.json")
    records.write(after, folder / "after.json")
    page = str(folder / "pages" / "compare.html")
    return ["report", str(folder / "before.json"), str(folder / "after.json"), "--page", page]


@pytest.mark.parametrize(
    ("before", "after", "code", "word"),
    [
        ("caught", "missed", FINDING, "Worse"),
        ("missed", "caught", OK, "No worse"),
        ("missed", "missed", OK, "No worse"),
        ("caught", "failed", CANNOT_RUN, "No verdict"),
        ("caught", None, CANNOT_RUN, "No verdict"),
    ],
)
def test_the_command_fails_for_what_is_new_or_worse_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str | None,
    code: int,
    word: str,
) -> None:
    assert main(command_line(tmp_path, ended(HUNT, before), ended(HUNT, after))) == code
    assert f"\n{word}: " in capsys.readouterr().out
    page = (tmp_path / "pages" / "compare.html").read_text()
    assert f'<h1 id="verdict-word">{word}</h1>' in page
    assert "abc1234, on CPU, 2 cores" in page


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_command_says_which_records_it_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """It reads no other kind of record, and none of an older build."""
    words = command_line(tmp_path, green(), green())
    path = tmp_path / f"{place}.json"
    shutil.copy(ROOT / "reports/evidence/cpu-bench.json", path)
    assert main(words) == MALFORMED
    said = capsys.readouterr().err
    assert f"{place}.json is a paritybit-bench file; a comparison needs two records" in said
    words = command_line(tmp_path, green(), green())
    edit(path, "version", value=3)
    assert main(words) == MALFORMED
    assert f"{place}.json has version 3; this build reads 5" in capsys.readouterr().err
