"""Tests of a finding's time line: every row of every step is drawn, within its frame."""

import re

import pytest
from paritybit.reports.drawings.timeline import lay_out

from properties.support.reports.pages import sample_markup, text_of, timelines
from properties.support.reports.records import (
    SAMPLES,
    findings,
    green,
    played,
    swa_pad_finding,
    traffic_finding,
    warning_finding,
    with_finding,
)

STEPS = {
    "two requests, then one": swa_pad_finding().timeline,
    "every kind of step": traffic_finding().timeline,
    "one eager forward": warning_finding().timeline,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_time_line_draws_each_live_and_each_padded_row(name: str) -> None:
    drawn, found = timelines(sample_markup(name)), findings(SAMPLES[name])
    assert len(drawn) == len(found) > 0
    for drawing, shown in zip(drawn, found, strict=True):
        steps = shown.timeline
        replays = [step for step in steps if step.bucket is not None]
        eager = [step for step in steps if step.bucket is None]
        assert drawing.count('class="live"') == sum(len(step.live) for step in replays)
        assert drawing.count('class="eager"') == sum(len(step.live) for step in eager)
        assert drawing.count('class="padded"') == sum(step.padded for step in steps)
        assert drawing.count('class="edge"') == len(replays)
        assert drawing.count('class="parked"') == sum(len(step.parked) for step in steps)
        assert drawing.count('class="band"') == sum(bool(step.violated) for step in steps)


@pytest.mark.parametrize("name", STEPS)
def test_a_time_line_stays_within_its_frame_and_names_what_is_violated(name: str) -> None:
    steps = STEPS[name]
    line = lay_out(steps, 240)
    assert line is not None
    assert all(column.x + 32 <= line.width for column in line.columns)
    assert all(cell.y + 20 <= line.height for column in line.columns for cell in column.cells)
    assert all(0 < mark.x <= line.width and mark.y < line.height for mark in line.marks)
    assert tuple(mark.text for mark in line.marks) == steps[-1].violated
    assert f"step {steps[-1].place}" in line.message


def test_a_long_time_line_keeps_its_end_and_says_what_it_leaves_out() -> None:
    steps = tuple(played(place, "decode", [0, 1], bucket=8, padded=6) for place in range(100))
    line = lay_out(steps, 240)
    assert line is not None
    assert line.columns[-1].place == 99
    assert line.omitted == 100 - len(line.columns) > 0
    record = with_finding(green(), 0, timeline=steps)
    assert re.search(r"The first \d+ steps are not drawn", text_of(record))
