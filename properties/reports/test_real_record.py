"""Tests of the record that the harness itself makes, and of an explainer that fails."""

import json
from html import unescape
from pathlib import Path
from re import DOTALL, findall

import pytest
from paritybit.harness.campaigns import regress
from paritybit.harness.campaigns.finding import Finding
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.campaigns.run_record import case_name, cases_of
from paritybit.harness.campaigns.run_record import record as record_of
from paritybit.harness.campaigns.task import Result, Status, Task
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import DECLARED_STATE, PROPERTIES
from paritybit.harness.explain.facts import TimelineEntry
from paritybit.harness.records import record as records
from paritybit.harness.records.case import load_case, write_case
from paritybit.harness.records.schema import Record
from paritybit.harness.schedules.schedule import Admit, Schedule
from paritybit.reports.page import render

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


def test_each_finding_of_a_run_has_a_case_file_of_its_own() -> None:
    tasks = regress.plan(regress.RunConfig("cpu"))
    assert any(task.trial.topk == 1 for task in tasks)
    assert len({case_name(task) for task in tasks}) == len(tasks)


@pytest.mark.parametrize("violations", [(), (VIOLATION,)])
def test_a_real_record_reads_back_and_can_be_shown(
    tmp_path: Path, violations: tuple[Violation, ...]
) -> None:
    record = real(tmp_path, violations)
    text = render(record)
    assert Page(text).open == []
    section = RunnerSection(text)
    assert section.cell("swa_pad", "decode").mark == ("caught", "1")
    assert len(section.runners) == len(record.engine_runners)
    assert list(record.properties) == [*PROPERTIES, DECLARED_STATE]
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
