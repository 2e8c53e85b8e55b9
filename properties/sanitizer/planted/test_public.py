"""The table of public fixes is sound, and its record is of that table."""

import json
from pathlib import Path

from properties.sanitizer.planted.faults import read
from properties.sanitizer.planted.outcome import Status, reasons
from properties.sanitizer.planted.public_record import (
    REASONS,
    RECORD,
    TABLE,
    Run,
    first,
    read_runs,
    table,
    write_runs,
)
from properties.sanitizer.planted.run import LEGS

FAULTS = read(TABLE)


def test_each_fault_undoes_another_public_fix() -> None:
    assert len(FAULTS) >= 20
    threads = [fault.thread or "" for fault in FAULTS]
    assert all(thread.startswith("sgl#") for thread in threads)
    assert len(set(threads)) == len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(frozenset(fault.needs) in LEGS for fault in FAULTS)


def test_the_record_is_of_the_table_and_its_misses_are_explained() -> None:
    runs, names = read_runs(), {fault.name for fault in FAULTS}
    assert {name for name, _ in runs} <= names
    assert RECORD.with_suffix(".md").read_text(encoding="utf-8") == table(list(runs.values()))
    found = {run.name for run in runs.values() if run.status is Status.FOUND}
    assert {name for name, _ in runs} - found <= set(reasons(REASONS))
    assert set(reasons(REASONS)) <= names | {"about"}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = Run(FAULTS[0].name, 1, "overlap", Status.FOUND, 9.5, 7.5, "leak", requests=2)
    runs = [found, Run(FAULTS[0].name, 0, "overlap", Status.MISSED, 9.5, 7.5)]
    path = tmp_path / "record.json"
    write_runs(path, runs)
    assert read_runs(path) == {(run.name, run.seed): run for run in runs}
    assert [entry["seed"] for entry in json.loads(path.read_text())] == [0, 1]
    assert first({run.seed: run for run in runs}) == found
