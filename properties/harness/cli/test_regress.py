"""The main job from the command line: what it leaves behind, whole, interrupted or failed."""

import json
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.campaigns.regress import RunConfig, plan
from paritybit.harness.campaigns.task import Result, Task
from paritybit.harness.cli.regress import hunts_of
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load
from paritybit.harness.records.schema import Status

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    OK,
    Data,
    kept_traceback,
)
from properties.support.harness.scripted import ERROR
from properties.support.places import ROOT

OnResult = Callable[[Result], None]

RUN = ["regress", "--preset", "gpt_oss", "--device", "cpu", "--workers", "1"]
PAIR = "loc_memo_warning@cpu_graph"


def record_of(out: Path) -> Data:
    """Return the record of the latest run, which has a page beside it."""
    latest = out / "latest"
    assert "<title>" in (latest / "index.html").read_text()
    record: Data = json.loads((latest / "run.json").read_text())
    return record


def the_bug_alone(settings: RunConfig) -> list[Task]:
    """Return the hunts of a plan's bugs, and no clean trial."""
    return [task for task in plan(settings) if task.bug is not None]


@pytest.mark.long
def test_a_whole_run_leaves_a_record_a_page_and_cases_that_name_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a second run swaps the link; its case is the same, byte for byte.

    Fewer clean schedules reach all that must be reached.
    """
    monkeypatch.setattr("paritybit.harness.campaigns.regress.CLEAN_SCHEDULES", 6)
    monkeypatch.setenv("USER", "nobody_of_note")
    monkeypatch.setenv("LOGNAME", "nobody_of_note")
    monkeypatch.chdir(tmp_path)
    words = [*RUN, "--bug", PAIR, "--out", str(tmp_path / "out")]
    assert main(words) == OK
    captured = capfd.readouterr()
    assert captured.err == ""
    detected = (
        r"^loc_memo_warning@cpu_graph \(gpt_oss, .*\): log_hygiene after \d+ schedules?, [\d.]+ s$"
    )
    assert len(re.findall(detected, captured.out, re.MULTILINE)) == 1
    green = (
        r" green: (\d+) of \1 clean trials passed;"
        r" (\d+) of \2 hunts ended as expected"
    )
    assert re.search(green, " ".join(captured.out.split()))

    record = record_of(tmp_path / "out")
    latest = tmp_path / "out" / "latest"
    assert f"page: {latest.resolve() / 'index.html'}\n" in captured.out
    assert record["verdict"] == "green"
    assert record["environment"]["processes"] == 1
    assert f"paritybit {' '.join(RUN)} --bug {PAIR} --out out" == record["command"]
    cases = sorted(path.name for path in (latest / "cases").iterdir())
    assert cases == ["loc_memo_warning-cpu_graph-gpt_oss.json"]
    case = load(latest / "cases" / cases[0], Case)
    assert (case.target, case.trial.runner) == ("log_hygiene", "cpu_graph")
    assert record["cases"] == f"out/{latest.resolve().name}/cases"
    written = [latest / "run.json", latest / "index.html", *(latest / "cases").iterdir()]
    for path in written:
        assert_names_nobody(path.read_text(), tmp_path)

    assert_a_second_run_writes_the_same_case(words, tmp_path / "out", monkeypatch)


def assert_names_nobody(text: str, folder: Path) -> None:
    """Find no absolute path, no user and no host in what a run wrote."""
    assert str(folder) not in text
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
    assert "nobody_of_note" not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def assert_a_second_run_writes_the_same_case(
    words: Sequence[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again without the clean trials, which leaves the run undecided."""
    monkeypatch.setattr("paritybit.harness.cli.regress.plan", the_bug_alone)
    first = (out / "latest").resolve()
    assert main(words) == CANNOT_RUN
    second = (out / "latest").resolve()
    assert (out / "latest").is_symlink()
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [first.name, second.name, "latest"]
    )
    name = "cases/loc_memo_warning-cpu_graph-gpt_oss.json"
    assert (first / name).read_bytes() == (second / name).read_bytes()
    assert_names_nobody((second / "index.html").read_text(), out.parent)


def ending(task: Task, status: Status = Status.GREEN, error: str | None = None) -> Result:
    """Return how a task might have ended."""
    return Result(task, status, HuntResult(), None, 0, 1.0, error)


def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C after two results; that no process is left is the executor's own test."""

    def run_tasks(tasks: Sequence[Task], _: int, on_result: OnResult) -> None:
        for task in tasks[:2]:
            on_result(ending(task))
        raise KeyboardInterrupt

    monkeypatch.setattr("paritybit.harness.cli.regress.run_tasks", run_tasks)
    assert main([*RUN, "--bug", "swa_pad", "--out", str(tmp_path)]) == INTERRUPTED
    captured = capsys.readouterr()
    assert captured.err == ""
    assert re.search(r"^interrupted: so far, 2 of 2 clean trials", captured.out, re.M)
    record = record_of(tmp_path)
    assert record["verdict"] == "interrupted"
    asked = RunConfig("cpu", hunts_of(("swa_pad",), ()), presets=("gpt_oss",))
    assert len(record["clean"]) == 2 < len(plan(asked))
    assert [row["status"] for row in record["clean"]] == ["green", "green"]
    assert record["bugs"] == []
    planned = len(plan(asked))
    assert record["message"].endswith(f"; {planned - 2} of {planned} did not finish")


def test_a_run_without_a_verdict_is_neither_green_nor_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task failed by an error of ours, and its traceback is kept and recorded.

    Beside something found it counts for less.
    """
    ends = {"first": Status.FAILED, "second": Status.CAUGHT}

    def run_tasks(tasks: Sequence[Task], _: int, on_result: OnResult) -> None:
        for task, status in zip(tasks, ends.values(), strict=False):
            on_result(ending(task, status, ERROR if status is Status.FAILED else None))

    monkeypatch.setattr("paritybit.harness.cli.regress.run_tasks", run_tasks)
    words = [*RUN, "--bug", PAIR, "--out", str(tmp_path)]
    assert main(words) == CANNOT_RUN
    captured = capsys.readouterr()
    assert kept_traceback(captured.err) == ERROR
    assert "failed ZeroDivisionError: of ours" in " ".join(captured.out.split())
    record = record_of(tmp_path)
    assert record["verdict"] == "red"
    assert [row["error"] for row in record["clean"]] == [ERROR]
    ends["second"] = Status.VACUOUS
    assert main(words) == CANNOT_RUN
    ends["second"] = Status.MISSED
    assert main(words) == FINDING
