"""`make bench` on small sizes."""

import pytest

from properties import bench


def test_the_figures_are_measured_and_compared_with_their_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("REPEATS", 1), ("DECODES", 6), ("CPU_GIB", 0.001), ("PRESETS", ("mimo",))):
        monkeypatch.setattr(bench, name, value)
    served = {
        1: {"seconds": 38.0, "served": 30.0, "counts": {"forwards": 600}},
        bench.UNWATCHED: {"seconds": 35.0, "served": 30.0, "counts": {"skipped_forwards": 1500}},
    }
    monkeypatch.setattr(bench, "served", lambda _, every: served[every])
    bench.bench("cpu", "sglang==0.5.23")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-3:] for row in rows[-3:]] == [
        ["≥", "110", "over"],
        ["≤", "1.3", "over"],
        ["≤", "5", "within"],
    ]
    assert rows[1][:3] == ["mimo:", "differential", "steps/s"]
