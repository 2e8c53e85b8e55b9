"""`make bench`: what it measures, and how it compares figures with bounds."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns import bench
from paritybit.harness.campaigns.bench import BOUNDS, Bound
from paritybit.harness.campaigns.watching import watching
from paritybit.harness.cli import bench as command

from paritybit.watch.replays.relations import NAMES
from properties.support.harness.scripted import Scripted, violating


@pytest.mark.parametrize(
    ("now", "recorded", "at_least", "expected"),
    [
        (0.8, 0.9, False, ("≤ 0.8", "0.8", "0.9", "within")),
        (0.81, None, False, ("≤ 0.8", "0.81", "–", "over")),
        (0.7, 0.9, True, ("≥ 0.8", "0.7", "0.9", "over")),
        (None, 0.9, True, ("≥ 0.8", "–", "0.9", "within at 0123456")),
        (None, 0.9, False, ("≤ 0.8", "–", "0.9", "over at 0123456")),
        (None, None, False, ("≤ 0.8", "–", "–", "not measured here")),
    ],
)
def test_a_figure_is_compared_with_its_bound(
    now: float | None, recorded: float | None, at_least: bool, expected: tuple[str, ...]
) -> None:
    """The figure of this run counts, or else that of the record."""
    bound = Bound("a figure", 0.8, bench.measured("part", "a"), at_least=at_least)
    before = {"environment": {"commit": "0123456789"}, "figures": {"part": {"a": recorded}}}
    assert bound.cells({"part": {"a": now}}, before) == ("a figure", *expected)


def test_each_bound_has_its_figure() -> None:
    figures = {
        "pool": {"frame_over_copy": 0.9},
        "watching": {
            "over_unwatched": 1.1,
            "forwards_per_second": 120.0,
            "seconds_added_to_start": 4.0,
        },
    }
    cells = [bound.cells(figures, None) for bound in BOUNDS]
    assert [row[-1] for row in cells[:4]] == ["within"] * 4
    assert all(" at " in row[-1] for row in cells[4:]), "the committed records have these figures"


def test_a_bench_prints_and_records_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "DECODES", 6)
    monkeypatch.setattr("paritybit.harness.cli.bench.CPU_GIB", 0.01)
    monkeypatch.setattr("paritybit.harness.cli.bench.PRESETS", ("mimo",))
    path = tmp_path / "bench.json"
    command.bench("cpu", record=path)
    said = capsys.readouterr().out
    figures = json.loads(path.read_text())["figures"]
    assert f"mimo: {figures['steps_per_second']['mimo']:.0f} differential steps/s\n" in said
    assert figures["pool"]["frame_over_copy"] > 0
    assert all(bound.figure in said for bound in BOUNDS)


def test_a_bench_of_a_schedule_with_violations_has_no_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(trial: Any, _: Any) -> Scripted:
        return Scripted(trial, lambda *_: violating("kv_parity"))

    monkeypatch.setattr(bench, "Lockstep", build)
    with pytest.raises(Exception, match="the benchmark schedule has violations"):
        command.bench("cpu")


def test_an_engine_is_watched_with_cheap_checks_and_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: dict[int, dict[str, Any]] = {
        1: {"seconds": 38.0, "counts": {"forwards": 600}},
        1_000_000: {"seconds": 35.0, "counts": {"forwards": 1, "skipped_forwards": 1499}},
    }
    asked = []

    def run(command: tuple[str, ...], **_: Any) -> None:
        words = dict(pairwise(command))
        asked.append(words)
        (folder := Path(words["--out"]) / "run").mkdir()
        (folder / "watch.json").write_text(json.dumps(runs[int(words["--every"])]))
        (log := folder / "legs" / "decode-graphs" / "engine.log").parent.mkdir(parents=True)
        log.write_text("loads\n600 forwards in 30.0 s\n")

    monkeypatch.setattr("subprocess.run", run)
    assert watching("sglang==0.5.23") == {
        "engine": "sglang==0.5.23",
        "setting": "decode graphs",
        "seconds_added_to_start": 3.0,
        "forwards_per_second": 20.0,
        "over_unwatched": 2.5,
    }
    for words in asked:
        checks = words["--checks"].split(",")
        assert len(checks) > 10 and not set(checks) & set(NAMES)
