"""A worker that is lost costs its task alone; a command that is ended keeps what it has."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Ended

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
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
        "paritybit.harness.cli.replay",
    ):
        monkeypatch.setattr(f"{module}.execute", all_lost)


LOST = {
    "regress": ["--bug", "swa_pad@decode", "--out", "out"],
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
    device = [] if command == "replay" else ["--device", "cpu"]
    assert main([command, *LOST[command], *device]) == CANNOT_RUN
    captured = capsys.readouterr()
    assert "failed" in captured.out or "not caught" in captured.out
    assert kept_traceback(captured.err) == f"{DIED}\n"
    if command == "regress":
        assert DIED in (tmp_path / "out/latest/run.json").read_text()
