"""What bench measures beside a step, and how its figures are held to bounds."""

import json
import signal
import threading
import time
from argparse import ArgumentTypeError
from itertools import pairwise
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Campaign
from paritybit.harness.campaigns.measuring import beginnings, commands, profile, sharing
from paritybit.harness.campaigns.measuring.budgets import BUDGETS, Budget, Held, held
from paritybit.harness.campaigns.measuring.sharing import (
    Rate,
    Share,
    meet,
    sharing_rates,
)
from paritybit.harness.campaigns.measuring.watching import watching
from paritybit.harness.cli.bench import beginning_line, sharing_line
from paritybit.harness.cli.words.values import counts
from paritybit.harness.machine import mps
from paritybit.harness.machine.workers import HERE, Workers

from paritybit.__main__ import main
from paritybit.watch.replays.relations import NAMES
from properties.support.harness.command_line import MALFORMED
from properties.support.harness.fake_gpus import FakeGpus


def test_processes_wait_until_all_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = threading.Thread(target=meet, args=(tmp_path, 1, 2))
    late.start()
    assert late.is_alive()
    meet(tmp_path, 0, 2)
    late.join(5)
    assert not late.is_alive()
    monkeypatch.setattr(sharing, "START_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="fewer than 3 processes got ready"):
        meet(tmp_path, 0, 3)


def rate_by_place(share: Share) -> Rate:
    """Give more steps the later the place; the process at place 2 fails."""
    if share.place == 2:
        raise ZeroDivisionError("of ours")
    return Rate(10 * (share.place + 1), 2.0)


def test_the_rate_of_processes_is_that_of_all_together_and_none_if_one_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    campaign = Campaign(rate_by_place, shared=lambda share: share, seconds=lambda _: 60.0)
    monkeypatch.setattr(sharing, "PLAYING", campaign)
    monkeypatch.setattr(sharing, "sparing", lambda *_: HERE)
    row = sharing.rate_of(Workers(2), "cpu")
    assert (row["steps_per_second"], row["error"]) == (15.0, None)
    assert sharing_line(row) == "2 processes: 15 differential steps/s in total"
    row = sharing.rate_of(Workers(3), "cpu")
    assert row["steps_per_second"] is None
    assert sharing_line(row) == "3 processes: failed: ZeroDivisionError: of ours"


def counted(workers: Workers, device: str) -> dict[str, Any]:
    """Stand for the rate of some workers: say whether a daemon answers meanwhile."""
    return {"spread": (workers.processes, workers.gpus, workers.mps), "answers": mps.answers()}


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Two GPUs of which nobody plays anything, beside 16 cores."""
    found = FakeGpus.made(tmp_path / "bin", gpus=2)
    monkeypatch.setenv("PATH", str(found.folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(sharing, "rate_of", counted)
    monkeypatch.setattr("paritybit.harness.machine.workers.cores", lambda: 16)
    monkeypatch.setattr(sharing, "cores", lambda: 16)
    return found


def test_rates_are_measured_on_one_gpu_and_on_all_without_mps_and_with(
    two_gpus: FakeGpus,
) -> None:
    rows = list(sharing_rates("cuda", (1, 15)))
    spreads = [(count, gpus) for gpus in (("0",), ("0", "1")) for count in (1, 15)]
    assert [row["spread"] for row in rows] == [
        (*spread, shared) for shared in (False, True) for spread in spreads
    ]
    assert [row["answers"] for row in rows] == [False] * 4 + [True] * 4
    assert two_gpus.gone()


def test_where_no_daemon_can_start_bench_says_so_beside_the_rest(two_gpus: FakeGpus) -> None:
    (two_gpus.folder / "refuses").touch()
    *rows, last = sharing_rates("cuda", (1,))
    assert len(rows) == 2
    assert sharing_line(last).startswith("not measured under MPS: --mps cannot start an MPS daemon")


def begun(device: str, processes: int, connections: int) -> float | None:
    """Stand for processes that begin: one connection is twice as fast, under MPS it fails."""
    assert device == "cuda"
    if mps.answers() and connections == 1:
        return None
    return 0.5 * processes * (2 if connections == 1 else 1)


def test_processes_that_begin_cuda_together_are_counted_without_mps_and_with(
    two_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginnings, "begun_per_second", begun)
    assert [beginning_line(row) for row in beginnings.beginnings("cuda")] == [
        ("8 processes on 1 GPU begin CUDA together, with 8 connections each: 4.0 processes/s"),
        ("8 processes on 1 GPU begin CUDA together, with 1 connection each: 8.0 processes/s"),
        (
            "15 processes on 1 GPU under MPS begin CUDA together, with 8 connections "
            "each: 7.5 processes/s"
        ),
        (
            "15 processes on 1 GPU under MPS begin CUDA together, with 1 connection "
            "each: failed because a process did not answer"
        ),
    ]
    assert two_gpus.gone()
    assert list(beginnings.beginnings("cpu")) == []


def test_the_rate_of_beginning_is_none_where_a_process_cannot_use_the_device() -> None:
    rate = beginnings.begun_per_second("cpu", 2, 1)
    assert rate is not None
    assert rate > 0
    assert beginnings.begun_per_second("no such device", 2, 1) is None


@pytest.mark.parametrize("words", ["0", "1,", "a"])
def test_numbers_of_processes_are_whole_numbers(words: str) -> None:
    assert counts("1,8") == (1, 8)
    with pytest.raises(ArgumentTypeError):
        counts(words)


@pytest.mark.parametrize(
    ("now", "recorded", "at_least", "expected"),
    [
        (0.8, 0.9, False, ("≤ 0.8", "0.8", "0.9", "within")),
        (0.81, None, False, ("≤ 0.8", "0.81", "–", "over")),
        (0.7, 0.9, True, ("≥ 0.8", "0.7", "0.9", "over")),
        (None, 0.9, True, ("≥ 0.8", "–", "0.9", "within at 15ad347")),
        (None, 0.9, False, ("≤ 0.8", "–", "0.9", "over at 15ad347")),
        (None, None, False, ("≤ 0.8", "–", "–", "not measured here")),
    ],
)
def test_a_figure_is_held_to_its_bound_by_what_is_measured_else_by_the_record(
    now: float | None, recorded: float | None, at_least: bool, expected: tuple[str, ...]
) -> None:
    row = Held(Budget("a figure", 0.8, at_least=at_least), now, recorded, "15ad347")
    assert row.cells == ("a figure", *expected)
    assert row.data["verdict"] == expected[-1].removesuffix(" at 15ad347")


def test_each_bound_has_a_figure_of_bench_or_of_a_record_or_none_at_all() -> None:
    """What no bench and no record holds is not measured, and nothing is made up for it."""
    ratios = [{"command": command, "ratio": 0.25} for command in commands.RUNS]
    watching = {"seconds_until_verdict": 8.0, "forwards_per_second": 70.0, "over_unwatched": 2.0}
    captures = {"seconds": 3.0, "hunts": ["a", "b"]}
    figures = {"captures": captures, "against": ratios, "watching": watching}
    rows = held(figures, None)
    assert [row.budget for row in rows] == list(BUDGETS)
    assert [row.now for row in rows] == [1.5, 0.25, 0.25, None, None, None, 8.0, 70.0, 2.0]
    of_records = [row.recorded is not None for row in rows]
    assert of_records == [False] * 3 + [True] * 3 + [False] * 3
    record = {"environment": {"commit": "0123456789"}, "figures": figures}
    rows = held({}, record)[:3]
    assert [(row.now, row.recorded) for row in rows] == [(None, 1.5), (None, 0.25), (None, 0.25)]
    assert {row.commit for row in rows} == {"0123456"}


def tree(folder: Path, package: str, code: str) -> Path:
    """Make a tree of paritybit whose command line runs some code."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "__main__.py").write_text(code)
    return folder


OTHER_TREE = """
import json, sys, time
if sys.argv[1] == "list":
    print(json.dumps({"bugs": {"swa_int64": "", "an_older_name": "", "swa_pad": ""}}))
else:
    assert sys.argv[1:4] == ["regress", "--bug", "swa_pad,swa_int64"], sys.argv
    while time.process_time() < 0.5: pass
"""


def test_commands_are_measured_here_and_in_another_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the other one calls its package, and for the bugs of both."""
    own = tree(tmp_path / "own", "paritybit", OTHER_TREE)
    monkeypatch.setattr(commands, "RUNS", {"regress": ("swa_pad", "req_pool_pad", "swa_int64")})
    for package in commands.MODULES:
        (row,) = commands.against_tree(tree(tmp_path / package, package, OTHER_TREE), own)
        assert (row["command"], row["bugs"]) == ("regress", 2)
        assert row["other_cpu_seconds"] >= 0.5
        assert row["cpu_seconds"] >= 0.5
        assert row["ratio"] == pytest.approx(row["cpu_seconds"] / row["other_cpu_seconds"], abs=0.1)


def test_a_command_that_fails_in_another_tree_has_no_figure(tmp_path: Path) -> None:
    failing = commands.against_tree(tree(tmp_path / "failing", "harness", "raise SystemExit(1)"))
    with pytest.raises(CalledProcessError):
        next(failing)


def test_a_folder_that_is_no_tree_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paritybit.harness.cli.bench.bench", lambda _: 1 / 0)
    assert main(["bench", "--device", "cpu", "--against", str(tmp_path)]) == MALFORMED
    assert "has no command line of paritybit" in capsys.readouterr().err


def test_an_engine_is_watched_with_cheap_checks_and_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {1: {"forwards": 600}, 1_000_000: {"forwards": 1, "skipped_forwards": 1499}}
    asked = []

    def run(command: tuple[str, ...], **_: Any) -> None:
        words = dict(pairwise(command))
        asked.append(words)
        (folder := Path(words["--out"]) / "run").mkdir()
        record = {"seconds": 38.0, "counts": counts[int(words["--every"])]}
        (folder / "watch.json").write_text(json.dumps(record))
        (log := folder / "legs" / "decode-graphs" / "engine.log").parent.mkdir(parents=True)
        log.write_text("loads\n600 forwards in 30.0 s\n")

    monkeypatch.setattr("subprocess.run", run)
    assert watching("sglang==0.5.23") == {
        "engine": "sglang==0.5.23",
        "setting": "decode graphs",
        "seconds_until_verdict": 8.0,
        "forwards_per_second": 20.0,
        "over_unwatched": 2.5,
    }
    for words in asked:
        checks = words["--checks"].split(",")
        assert len(checks) > 10 and not set(checks) & set(NAMES)


def test_an_engine_that_no_connector_knows_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paritybit.harness.cli.bench.bench", lambda _: 1 / 0)
    assert main(["bench", "--device", "cpu", "--engine", "no_engine==1"]) == MALFORMED
    assert "no_engine" in capsys.readouterr().err


def busy(seconds: float) -> None:
    """Use the CPU for so long."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def busy_twice() -> int:
    """Use the CPU in another function most of the time."""
    busy(0.4)
    return 7


def test_a_profile_names_the_inner_part_of_what_takes_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {busy.__code__: "inner", busy_twice.__code__: "outer"}
    monkeypatch.setattr(profile, "PARTS", parts)
    before = signal.getsignal(signal.SIGPROF)
    result, costs = profile.profiled(busy_twice)
    assert signal.getsignal(signal.SIGPROF) is before
    assert result == 7
    assert costs["cpu_seconds"] >= 0.4
    assert costs["parts"]["inner"] > 0.8
    assert costs["files"] == {}, "no file of this project took time"
