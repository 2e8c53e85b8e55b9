"""The upstream history: its table agrees with itself, and what it says is what is seen."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.history import (
    CONSEQUENCES,
    HISTORY,
    Point,
    play_history,
    watch,
)
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.checks.expectations import detected_by, unaffected_reason
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.machine.workers import Workers
from paritybit.harness.records.case import of_format, read_json
from paritybit.harness.records.schema import VERSION
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, FINDING, OK, kept_traceback
from properties.support.harness.scripted import ERROR, Scripted, losing

POINTS = {point.name: point for point in HISTORY}
PAIRS = [
    (point, bug, runner)
    for point in HISTORY
    for bug, runners in point.bugs.items()
    for runner in runners
]


def alone(point: Point, runner: str) -> Point:
    """Return a point at which there was this runner alone."""
    return replace(point, absent=[name for name in RUNNERS if name != runner])


watched = cache(watch)
"""What a trial showed: the tests of this file play it once."""


@pytest.fixture(autouse=True)
def watch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play no trial twice."""
    monkeypatch.setattr("paritybit.harness.campaigns.history.watch", watched)


def test_a_bug_is_where_it_can_live_and_must_be_seen_there_or_is_hidden() -> None:
    for point, bug, runner in PAIRS:
        assert runner in point.runners
        assert point.scheme in BUGS[bug].schemes
        assert not lacking(BUGS[bug], runner)
        assert unaffected_reason(BUGS[bug], runner) is None
        detecting = detected_by(BUGS[bug], runner)
        assert detecting is not None
        seen = [*point.red.get(detecting, ()), *point.hidden.get(detecting, ())]
        assert runner in seen, (point.name, bug, runner)


def test_nothing_must_be_red_or_is_hidden_without_a_bug_behind_it() -> None:
    """An int64 location is read wrongly by the store: what it stores differs, too."""
    wanted = {(point.name, detected_by(BUGS[bug], runner), runner) for point, bug, runner in PAIRS}
    wanted |= {(point.name, "kv_parity", runner) for point, bug, runner in PAIRS if "64" in bug}
    assert wanted == {
        (point.name, name, runner)
        for point in HISTORY
        for table in (point.red, point.hidden)
        for name, runners in table.items()
        for runner in runners
    }


@pytest.mark.parametrize("name", ["before 23552", "after 23552", "after 25824", "after 26292"])
def test_what_a_runner_shows_at_a_point_is_what_the_table_says(name: str, device: str) -> None:
    """The cheapest runner, which nothing but the changes to all runners has touched."""
    figures = play_history(device, Workers(1), [alone(POINTS[name], "cpu_graph")])
    (point,) = figures["points"]
    assert figures["as_hoped"], point["odd"]
    wanted = POINTS[name].expected("cpu_graph")
    stale = CONSEQUENCES["hermetic_replay"] if "hermetic_replay" in wanted else frozenset()
    assert point["red"].keys() == wanted | stale
    assert point["played"]["cpu_graph"]["padded_replays"] > 0


def seen(padded: int = 1, **violated: int) -> HuntResult:
    """Return what watching a trial might have seen."""
    return HuntResult(
        schedules=9, steps=9, replays=9, padded_replays=padded, violated=Counter(violated)
    )


ODD: Mapping[str, tuple[HuntResult, str]] = {
    "what must be red is not": (seen(), "decode: hermetic_replay was not violated"),
    "what must be green was violated": (
        seen(hermetic_replay=3, log_hygiene=1),
        "decode: log_hygiene was violated",
    ),
    "a consequence without its cause": (
        seen(hermetic_replay=3, logits_parity=1),
        "decode: logits_parity was violated",
    ),
    "nothing was padded": (
        seen(padded=0, hermetic_replay=3),
        "decode: no padded batch was replayed",
    ),
}


@pytest.mark.parametrize("message", ODD)
def test_what_is_not_as_the_table_says_is_named(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hunt_result, sentence = ODD[message]
    monkeypatch.setattr("paritybit.harness.campaigns.history.watch", lambda _: hunt_result)
    figures = play_history("cpu", Workers(1), [alone(POINTS["after 26152"], "decode")])
    assert figures["points"][0]["odd"] == [sentence]
    assert not figures["as_hoped"]
    assert figures["message"] == "1 points; unexpected results: after 26152"


def test_a_consequence_may_be_red_where_its_cause_must_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hunt_result = seen(index_contract=9, kv_parity=9, **dict.fromkeys(CONSEQUENCES["kv_parity"], 1))
    monkeypatch.setattr("paritybit.harness.campaigns.history.watch", lambda _: hunt_result)
    figures = play_history("cpu", Workers(1), [alone(POINTS["after 24743"], "breakable")])
    assert figures["as_hoped"], figures["points"][0]["odd"]


def short(history: Sequence[Point]) -> list[Point]:
    """Return a history of one runner, the cheapest."""
    return [alone(point, "cpu_graph") for point in history]


def playing(history: Sequence[Point]) -> Callable[[str, Workers], dict[str, Any]]:
    """Return what plays this history in place of the whole one."""
    return lambda device, workers: play_history(device, workers, history)


def test_a_timeline_is_shown_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paritybit.harness.cli.measure.play_history", playing(short(HISTORY[-2:])))
    path = tmp_path / "timeline.json"
    words = ["timeline", "--device", "cpu", "--workers", "1", "--record", str(path)]
    assert main(words) == OK
    message = capsys.readouterr().out
    assert "2 points; unexpected results: none; " in message
    figures = of_format(read_json(path), path.name, "paritybit-timeline", VERSION)["figures"]
    assert [point["red"].keys() for point in figures["points"]] == [
        {"hermetic_replay", "read_frame", "live_inputs"},
        set(),
    ]
    assert set(figures["properties"]) == STEP_PROPERTIES


def test_a_timeline_that_is_not_as_said_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(alone(HISTORY[-1], "cpu_graph"), red={"log_hygiene": ["cpu_graph"]})
    monkeypatch.setattr("paritybit.harness.cli.measure.play_history", playing([wrong]))
    assert main(["timeline", "--device", "cpu", "--workers", "1"]) == FINDING
    message = capsys.readouterr().out
    assert "after 26292: cpu_graph: log_hygiene was not violated" in message
    assert "✗" in message


def test_a_timeline_that_an_error_of_ours_ends_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its traceback is kept; a lost device, which a trial shows, is a finding of its own."""
    monkeypatch.setattr("paritybit.harness.cli.measure.play_history", playing(short(HISTORY[-1:])))
    monkeypatch.setattr(
        "paritybit.harness.campaigns.history.watch", lambda _: HuntResult(error=ERROR)
    )
    assert main(["timeline", "--device", "cpu", "--workers", "1"]) == CANNOT_RUN
    captured = capsys.readouterr()
    assert "after 26292: cpu_graph: failed: ZeroDivisionError: of ours\n" in captured.out
    assert kept_traceback(captured.err) == ERROR


def test_a_lost_device_is_what_a_trial_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = HISTORY[-1].trial("cpu_graph", "cpu")
    monkeypatch.setattr(
        "paritybit.harness.campaigns.history.Lockstep", lambda *_: Scripted(trial, losing)
    )
    assert watch(trial).violated == {"captured_path": 1}
