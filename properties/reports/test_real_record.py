"""Tests of the record that the harness itself makes, and of an explainer that fails."""

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from re import DOTALL, findall
from typing import cast

import pytest
from paritybit.harness.campaigns import regress
from paritybit.harness.campaigns.finding import Finding
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.campaigns.run_record import cases_of
from paritybit.harness.campaigns.run_record import record as record_of
from paritybit.harness.campaigns.task import Result, Source, Status, Task, run_task
from paritybit.harness.checks.property import Property, Violation
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import headline
from paritybit.harness.explain.facts import Cause, TimelineEntry
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records import record as records
from paritybit.harness.records.case import Case, load_case, write_case
from paritybit.harness.records.schema import Record
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.reports.page import render

from paritybit.__main__ import main
from properties.support.harness.command_line import kept_traceback
from properties.support.harness.scripted import violating
from properties.support.reports.pages import Page, RunnerSection
from properties.support.reports.records import explanation

VIOLATION = Violation("kv_parity", 0, "message", {"slot": 3})


def result_of(task: Task, violations: tuple[Violation, ...]) -> Result:
    """Return a result of a task that found something, on a schedule of one step."""
    entry = TimelineEntry(0, "admit", "extend", None, None, (0,), 0, (), 1)
    schedule = Schedule((Admit(1, 16),), seed=0)
    told = tuple(violation.to_json() for violation in violations)
    hunt_result = HuntResult(schedules=1, steps=1, replays=1, padded_replays=1, schedule=schedule)
    status = Status.RED if task.bug is None else Status.CAUGHT
    found = Finding(schedule, told, (entry,), explanation())
    return Result(task, status, hunt_result, found, 0, 1.0)


def real(folder: Path, violations: tuple[Violation, ...]) -> Record:
    """Return the record that the harness makes of a run of one bug on one runner, read back."""
    run = regress.Run(regress.RunConfig("cpu", hunts=(("swa_pad", "decode"),)))
    run.results += [result_of(task, violations) for task in regress.plan(run.settings)]
    made = record_of(run, "cases")
    for name, case in cases_of(run).items():
        write_case(case, folder / name)
    records.write(made, folder / "run.json")
    assert records.load(folder / "run.json") == made
    return made


@pytest.mark.parametrize("violations", [(), (VIOLATION,)])
def test_a_real_record_reads_back_and_can_be_shown(
    tmp_path: Path, violations: tuple[Violation, ...]
) -> None:
    record = real(tmp_path, violations)
    text = render(record)
    assert Page(text).open == []
    section = RunnerSection(text)
    assert section.cell("swa_pad", "decode").mark == ("caught", "1/1")
    assert len(section.runners) == len(record.engine_runners)
    assert list(record.properties) == list(PROPERTIES)
    assert record.uncompiled_runners == ("cpu_graph",)


def test_the_case_on_the_page_is_the_case_file(tmp_path: Path) -> None:
    record = real(tmp_path, (VIOLATION,))
    hunts = [hunt for hunt in (*record.clean, *record.bugs) if hunt.finding is not None]
    shown = findall(r'<span id="[^"]*--case">(.*?)</span>', render(record), DOTALL)
    assert len(hunts) == len(shown) > 0
    for hunt, text in zip(hunts, shown, strict=True):
        assert hunt.finding is not None
        path = tmp_path / Path(hunt.finding.case_file).name
        assert json.loads(unescape(text)) == json.loads(path.read_text())
        copied = tmp_path / "copied.json"
        copied.write_text(unescape(text))
        assert load_case(copied) == load_case(path)


BROKEN = TrialConfig().with_bug("swa_pad")
SCHEDULE = Schedule((Admit(1, 16), Admit(2, 16), Decode((0, 1)), Decode((0,))))
"""Violates kv_parity at its last step, with swa_pad switched on."""


def fail(recorded: RecordedForward) -> Cause | None:
    """Fail as a cause function might."""
    raise ZeroDivisionError(f"no cause of step {recorded.forward_id.step}")


def test_an_error_of_the_explainer_fails_the_task_and_keeps_the_violations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(PROPERTIES["kv_parity"], cause=fail)
    monkeypatch.setitem(cast(dict[str, Property], PROPERTIES), "kv_parity", broken)
    monkeypatch.setattr(
        "paritybit.harness.campaigns.task._search",
        lambda *_: HuntResult(schedules=1, replays=1, schedule=SCHEDULE, drawn=SCHEDULE),
    )
    run = regress.Run(regress.RunConfig("cpu", hunts=(("swa_pad", "decode"),), examples=1))
    (task,) = (
        task
        for task in regress.plan(run.settings)
        if task.bug is not None and task.source is Source.GENERATED
    )
    result = run_task(task, play=lambda _: violating("kv_parity"))
    assert result.status is Status.FAILED
    assert result.error is not None
    assert headline(result.error) == "ZeroDivisionError: no cause of step 3"
    assert result.finding is not None
    assert result.finding.error == result.error
    assert "kv_parity" in {violation["property"] for violation in result.finding.violations}
    assert result.finding.explanation is None
    run.results.append(result)
    record = record_of(run, "cases")
    found = record.bugs[0].finding
    assert found is not None
    assert found.error is not None
    assert found.error.startswith("Traceback")
    assert "in fail" in found.error
    text = Page(render(record)).text
    assert "The explainer failed." in text
    assert "ZeroDivisionError: no cause of step 3" in text


def test_a_replay_tells_that_the_explainer_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(PROPERTIES["kv_parity"], cause=fail)
    monkeypatch.setitem(cast(dict[str, Property], PROPERTIES), "kv_parity", broken)
    path = tmp_path / "case.json"
    write_case(Case(replace(BROKEN), SCHEDULE, "kv_parity", 0, ()), path)
    assert main(["replay", str(path)]) == 1
    printed = capsys.readouterr()
    assert "step 3: kv_parity:" in printed.out
    assert "no explanation: the explainer failed" in printed.out
    text = kept_traceback(printed.err)
    assert "in fail" in text
    assert text.endswith("ZeroDivisionError: no cause of step 3\n")
