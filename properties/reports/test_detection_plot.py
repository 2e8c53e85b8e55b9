"""Tests of what the page says of a run as a whole: schedules to detection, and what it skipped."""

from paritybit.harness.records.schema import BugRow
from paritybit.reports.drawings import detection_plot
from paritybit.reports.skipped import skipped

from properties.support.reports.records import bug, green


def hunts() -> list[BugRow]:
    """Return hunts of two bugs: caught early, caught late, missed, and one that cannot catch."""
    return [
        bug("swa_pad", "caught", schedules_to_detection=1),
        bug("swa_pad", "caught", "target_verify", schedules_to_detection=1),
        bug("swa_pad", "caught", source="traffic", schedules_to_detection=50),
        bug("swa_int64", "missed"),
        bug("loc_memo_warning.entry", "unaffected", detected_by=None),
    ]


def test_a_plot_has_a_dot_for_all_hunts_that_drew_equally_many() -> None:
    plot = detection_plot.lay_out(hunts(), "bug", 50)
    assert plot is not None
    assert [line.name for line in plot.lines] == ["swa_pad", "swa_int64"]
    early, late = plot.lines[0].dots
    (missed,) = plot.lines[1].dots
    assert (early.count, late.count, missed.count) == (2, 1, 1)
    assert (early.kind, late.kind, missed.kind) == ("generated", "traffic", "missed")
    assert plot.left == early.x < late.x < missed.x < plot.width
    assert plot.message == "3 of 4 hunts detected their bug"
    assert early.message == "generated, after 1: swa_pad@decode, swa_pad@target_verify"


def test_a_hunt_of_one_schedule_can_be_plotted() -> None:
    assert detection_plot.lay_out(hunts()[:1], "runner", 1) is not None


def test_the_page_says_what_was_stubbed_or_skipped() -> None:
    facts = {fact.name: fact.value for fact in skipped(green())}
    assert "a graph is a tape" in facts["CUDA graphs"]
    assert "Triton kernels" in facts
    assert facts["cannot be switched on"].startswith("3 of 32 pairs")
    assert "swa_pad@target_verify" in facts["hunts not selected, or not reached"]
    assert "swa_pad@cpu_graph" not in facts["hunts not selected, or not reached"]
    assert facts["runners not tested"] == "target_verify, cpu_graph, piecewise"
    assert "compiler arithmetic" not in facts
