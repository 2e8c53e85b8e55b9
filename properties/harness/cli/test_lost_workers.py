"""A worker that is lost costs its task alone; a command that is ended keeps what it has."""

import json
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Campaign, Ended
from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.fetch import Found, dependencies_folder
from paritybit.harness.engines.trial import play_case
from paritybit.harness.engines.worker import LegTask
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.schedule import Schedule

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    LONGEST,
    TERMINATED,
    in_its_own_group,
    kept_traceback,
    write_swa_pad_case,
)

DIED = "the process died with exit code -9"


def all_lost(
    _: Any, tasks: Iterable[Any], processes: int, on_end: Callable[[Ended[Any, Any]], None]
) -> None:
    """End every task as one whose process was killed."""
    for task in tasks:
        on_end(Ended(task, 1.0, None, DIED))


@pytest.fixture(autouse=True)
def every_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a task whose process dies ends so, and the rest goes on, is the executor's test."""
    for module in (
        "paritybit.harness.campaigns.regress",
        "paritybit.harness.campaigns.soak",
        "paritybit.harness.campaigns.history",
        "paritybit.harness.campaigns.mutants.score",
        "paritybit.harness.cli.replay",
        "paritybit.harness.engines.trial",
    ):
        monkeypatch.setattr(f"{module}.execute", all_lost)


LOST = {
    "regress": ["--bug", "swa_pad@decode", "--out", "out"],
    "corpus": ["--bug", "swa_pad@decode", "--out", "cases"],
    "timeline": ["--record", "record.json"],
    "soak": ["--steps", "20", "--seeds", "0", "--record", "record.json"],
    "mutants": ["--runner", "cpu_graph", "--record", "record.json"],
    "replay": ["case.json", "case.json"],
}
"""Commands whose work is spread over processes, and what each is asked for."""


@pytest.mark.parametrize("command", LOST)
def test_lost_workers_are_failed_tasks_and_no_verdict(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And what the command was asked to write is written, with the reason in it."""
    monkeypatch.chdir(tmp_path)
    write_swa_pad_case(tmp_path / "case.json")
    device = [] if command in {"corpus", "replay"} else ["--device", "cpu"]
    assert main([command, *LOST[command], *device]) == CANNOT_RUN
    captured = capsys.readouterr()
    assert "failed" in captured.out or "not caught" in captured.out
    assert kept_traceback(captured.err) == f"{DIED}\n"
    written = {"regress": "out/latest/run.json"}.get(command, "record.json")
    if written in LOST[command] or command == "regress":
        assert DIED in (tmp_path / written).read_text()


def test_a_lost_worker_leaves_an_engine_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "python" / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "runner.py").write_text("class CudaGraphRunner: ...\n")
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path / "engines"))
    (dependencies_folder() / "dependencies").mkdir(parents=True)
    words = ["--runner", "decode", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(["regress", "--engine", str(tmp_path), *words]) == CANNOT_RUN
    assert f"undecided: {DIED}" in " ".join(capsys.readouterr().out.split())
    record = json.loads((tmp_path / "out/latest/engine.json").read_text())
    assert {entry["reason"] for entry in record["answer"]["undecided"]} == {DIED}


def test_the_code_of_an_engine_is_given_time_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time for each schedule that a leg plays, and the variables of an allow-list."""
    seen: list[tuple[Campaign[Any, Any], list[LegTask]]] = []
    monkeypatch.setattr(
        "paritybit.harness.engines.trial.execute",
        lambda campaign, tasks, *_: seen.append((campaign, tasks)),
    )
    case = EngineCase("sglang==1", Case(TrialConfig(), Schedule(()), None, 0, ()))
    play_case(Found("sglang 1", Path("nowhere")), case, tmp_path / "engine.log")
    ((campaign, (leg,)),) = seen
    few, many = (campaign.seconds(replace(leg, examples=count)) for count in (0, 10))
    assert few >= 600
    assert many - few >= 10 * 60
    assert campaign.variables is not None
    for name in ("PATH", "HOME", "CUDA_VISIBLE_DEVICES", "LC_ALL", "OMP_NUM_THREADS"):
        assert campaign.variables.fullmatch(name)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "PATHS"):
        assert not campaign.variables.fullmatch(name)


TERMINATED_RUN = """
import sys
import paritybit.harness.cli.regress
from paritybit.__main__ import main
from properties.support.harness.executor_tasks import CHORES, Chore, Workers, execute, say

def run_tasks(tasks, workers, on_result):
    chores = [Chore("go well"), Chore("hang", 1), Chore("hang", 2)]
    execute(CHORES, chores, Workers(2), lambda _: say("ended"))

paritybit.harness.cli.regress.run_tasks = run_tasks
sys.exit(main(["regress", "--device", "cpu", "--bug", "swa_pad@decode", "--out", sys.argv[1]]))
"""
"""The main job with tasks of nothing, of which two hang."""


def test_a_run_that_is_terminated_keeps_its_record(tmp_path: Path) -> None:
    with in_its_own_group("-c", TERMINATED_RUN, tmp_path) as process:
        assert process.stdout is not None
        assert "ended\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, errors) == (TERMINATED, "")
    assert "interrupted: so far" in output
    assert json.loads((tmp_path / "latest/run.json").read_text())["verdict"] == "interrupted"


PLAYING_FRESH = """
from paritybit.harness.campaigns.fresh import FreshPlaying, play_fresh
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Schedule
from properties.support.harness.hanging import build

play_fresh(FreshPlaying(TrialConfig(), frozenset(), frozenset(), (Schedule(()),)), build)
"""
"""A schedule that a fork of a fresh process plays for ever."""


def test_a_fresh_process_and_its_forks_end_with_the_one_that_asked_for_them() -> None:
    """All hold its stdout: whoever reads that reads the end of it."""
    with in_its_own_group("-c", PLAYING_FRESH) as process:
        assert process.stdout is not None
        assert "playing\n" in iter(process.stdout.readline, "")
        process.kill()
        process.communicate(timeout=10)
