"""Whole engines beside the replica: which are watched, and what comes of them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.campaigns.task import Result, Status, Task
from paritybit.harness.cli.watch import whole_engines
from paritybit.harness.cli.watch.whole_engines import (
    ENGINES,
    KnownEngine,
    downloaded,
    judged,
    watched,
)
from paritybit.harness.machine.workers import Workers
from paritybit.subjects.bugs.catalogue import BUGS

from paritybit.__main__ import main
from paritybit.drive.engines import driven
from paritybit.engines import fetch
from paritybit.launch.follow import Stops
from paritybit.launch.record import write
from paritybit.launch.schema import Finding
from paritybit.watch.checks import CHECKS
from properties.support.harness.command_line import CANNOT_RUN, FINDING, MALFORMED, OK
from properties.support.records import finding
from properties.support.records import watched as record

LEAKS = KnownEngine("sglang==0.0.1", "decode graphs", {"swa_pad": "leak"})
CLEAN = KnownEngine("sglang==0.0.2", "decode graphs")


def lay(home: Path, findings: Sequence[Finding], *, serves: bool = True) -> None:
    """Lay down what a run of watch leaves. One that serves nothing has no verdict."""
    (home / "run").mkdir(parents=True)
    (home / "latest").symlink_to("run")
    write(record(findings) if serves else record([], []), home / "run" / "watch.json")


def test_the_engines_are_there_and_so_are_their_bugs_and_checks() -> None:
    for one in ENGINES:
        assert one.setting in driven(one.engine).table.settings
        assert set(one.bugs) <= set(BUGS)
        assert set(one.bugs.values()) <= set(CHECKS)


def test_those_that_lie_here_are_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetch, "folder", lambda: tmp_path)
    assert downloaded(()) == []
    for name in ("sglang-0.5.11", "sglang-0.5.12.post1", "vllm-0.33.0", "vllm-0.5.23"):
        (tmp_path / name).mkdir()
    names = ["sglang==0.5.11", "sglang==0.5.12.post1", "vllm==0.33.0"]
    assert [one.engine for one in downloaded(())] == names
    assert [one.engine for one in downloaded(["swa_pad@decode"])] == names[:1]
    assert [one.engine for one in downloaded(["req_pool_pad", "swa_pad"])] == names[:2]
    assert downloaded(["loc_memo_capture"]) == []


@pytest.mark.parametrize(
    ("engine", "findings", "verdict", "found"),
    [
        (LEAKS, [finding("a")], "as expected", {"swa_pad": True}),
        (LEAKS, [], "unexpected", {"swa_pad": False}),
        (CLEAN, [], "as expected", {}),
        (CLEAN, [finding("a")], "unexpected", {}),
    ],
)
def test_a_run_is_held_against_what_is_known(
    tmp_path: Path, engine: KnownEngine, findings: Sequence[Finding], verdict: str, found: object
) -> None:
    lay(tmp_path / "whole" / "engine", findings)
    one = judged(engine, tmp_path / "whole" / "engine", tmp_path)
    assert (one.verdict, one.found) == (verdict, found)
    assert one.page == "whole/engine/run/index.html"


def test_without_a_record_there_is_no_verdict(tmp_path: Path) -> None:
    stops = Stops()
    stops.received = 2
    (one,) = watched([LEAKS], tmp_path / "whole", stops)
    assert (one.verdict, one.message, one.page) == ("undecided", "it was not started", None)


@pytest.mark.parametrize(
    ("engine", "code", "verdict"),
    [(CLEAN, FINDING, "unexpected"), (LEAKS, FINDING, "undecided"), (CLEAN, 125, "undecided")],
)
def test_a_finding_counts_although_its_record_could_not_be_written(
    tmp_path: Path, engine: KnownEngine, code: int, verdict: str
) -> None:
    assert judged(engine, tmp_path, tmp_path, code).verdict == verdict


def all_as_expected(tasks: Sequence[Task], _: Workers, on_result: Callable[..., None]) -> None:
    """Run no task: each ends as expected."""
    for task in tasks:
        status = Status.GREEN if task.bug is None else Status.UNAFFECTED
        on_result(Result(task, status, HuntResult(), None, 0, 1.0))


@pytest.mark.parametrize(
    ("findings", "unreached", "code", "verdict"),
    [
        ([finding("a")], [], OK, "green"),
        ([], [], FINDING, "red"),
        (None, [], CANNOT_RUN, "green"),
        ([finding("a")], ["a state"], CANNOT_RUN, "red"),
        ([], ["a state"], FINDING, "red"),
    ],
)
def test_regress_shows_them_and_ends_by_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    findings: Sequence[Finding] | None,
    unreached: list[str],
    code: int,
    verdict: str,
) -> None:
    asked: list[Sequence[str]] = []

    def run(words: Sequence[str], log: Path, stops: Stops) -> None:
        asked.append(words)
        log.write_text("paritybit: the release does not start\n", encoding="utf-8")
        if findings is not None:
            lay(log.parent, findings)

    monkeypatch.setattr("paritybit.harness.cli.regress.run_tasks", all_as_expected)
    monkeypatch.setattr("paritybit.harness.campaigns.regress.unreached", lambda run: unreached)
    monkeypatch.setattr("paritybit.harness.cli.regress.downloaded", lambda bugs: [LEAKS])
    monkeypatch.setattr(whole_engines, "run_aside", run)
    narrow = ("--bug", "swa_pad@decode", "--preset", "gpt_oss", "--device", "cpu", "--workers", "1")
    assert main(["regress", *narrow, "--whole-engines", "--out", str(tmp_path)]) == code
    assert asked[0][:3] == ("watch", "--engine", LEAKS.engine)
    data = json.loads((tmp_path / "latest" / "run.json").read_text())
    assert data["verdict"] == verdict
    assert data["message"].endswith("whole engines are as expected")
    (one,) = data["whole_engines"]
    assert one["engine"] == LEAKS.engine
    assert LEAKS.engine in (tmp_path / "latest" / "index.html").read_text()
    assert LEAKS.engine in capsys.readouterr().out


def test_a_whole_engine_has_no_others_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["regress", "--engine", "sglang==0.5.11", "--whole-engines"]) == MALFORMED
    assert "--whole-engines cannot be used with --engine" in capsys.readouterr().err
