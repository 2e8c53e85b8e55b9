"""The tables of faults are sound, and what is planted, judged and recorded is what they list."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from paritybit.drive.adapters import adapter_of
from paritybit.drive.configs import AND
from paritybit.watch.checks import CHECKS
from paritybit.watch.settings import RANKS_DISAGREE
from properties.planting.faults import TABLES, Edit, Fault, plant, read
from properties.planting.record import RECORD, End, FaultRun
from properties.planting.record import read as read_record
from properties.planting.run import differs, judge
from properties.support.releases import package_of

ROWS = [(table.stem, fault) for table in TABLES for fault in read(table)]
COUNTS = {
    "actions": 13,
    "apart": 9,
    "around-unseen3": 38,
    "around-unseen4": 42,
    "around-unseen5": 40,
    "around-unseen6": 42,
    "around-unseen7": 40,
    "chunks": 9,
    "compressed-unseen": 20,
    "harmless": 8,
    "moves-unseen": 33,
    "moves-unseen2": 36,
    "moves-unseen3": 34,
    "moves-unseen4": 38,
    "moves-unseen5": 36,
    "moves-unseen6": 36,
    "moves-unseen7": 38,
    "public": 76,
    "ranks": 28,
    "ranks-unseen": 24,
    "ranks-unseen2": 22,
    "sglang": 124,
    "states-unseen": 11,
    "states-unseen2": 33,
    "states-unseen3": 36,
    "transformers": 36,
    "unseen": 30,
    "vllm": 66,
}


def test_no_fault_is_lost_or_listed_twice() -> None:
    assert Counter(table for table, _ in ROWS) == COUNTS
    assert sum(fault.explore is not None for _, fault in ROWS) == 20
    for values in (
        [(table, fault.engine.partition("==")[0], fault.name) for table, fault in ROWS],
        [(table, fault.engine, fault.edits) for table, fault in ROWS],
    ):
        assert max(Counter(values).values()) == 1


def test_each_fault_has_one_expected_result() -> None:
    for _, fault in ROWS:
        listed = [fault.found is not None, fault.missed is not None, fault.harmless]
        assert sum(listed) == 1 or (fault.explore is not None and not any(listed)), fault.name
        checks = {None, *CHECKS, "company", RANKS_DISAGREE}
        assert fault.found in checks, fault.name
        assert fault.why, fault.name
        assert all(edit.old != edit.new for edit in fault.edits), fault.name


def test_the_settings_of_each_fault_can_be_served() -> None:
    for _, fault in ROWS:
        table = adapter_of(fault.engine).table.on("cpu")
        for row in filter(None, fault.settings.split(",")):
            values = row.split(AND)
            assert set(values) <= set(table.settings), f"{fault.name}: {row}"
            table.config(values)


def test_the_record_shows_what_the_tables_list() -> None:
    """The results of unseen faults and of `harmless.toml` are recorded in the tables alone."""
    found = defaultdict(set)
    for outcome in read_record(RECORD).values():
        if outcome.name and outcome.device == "cpu":
            check = outcome.check if outcome.explore is None else "explored"
            found[outcome.name].add(check if outcome.status is End.FOUND else None)
    for table, fault in ROWS:
        if "unseen" not in table and table != "harmless":
            shown = found[fault.name] - {None}
            assert (fault.found in shown) == (fault.found is not None), fault.name
            assert ("explored" in shown) == (fault.explore is not None), fault.name
            assert not (fault.missed and shown - {"explored"}), fault.name


FAULT = Fault("n", "engine==1", "A reason.", (Edit("engine/pool.py", "slot + 1", "slot"),))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with an engine of two files."""
    package = tmp_path / "source/engine"
    package.mkdir(parents=True)
    (package / "pool.py").write_text("def next(slot):\n    return slot + 1\n")
    (package / "other.py").write_text("X = 1\n")
    return package.parent


def test_a_fault_is_planted_in_a_copy(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    plant(FAULT, source, target)
    assert (source / "engine/pool.py").read_text() == "def next(slot):\n    return slot + 1\n"
    assert (target / "engine/pool.py").read_text() == "def next(slot):\n    return slot\n"
    assert (source / "engine/other.py").samefile(target / "engine/other.py")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("slot", "x", "2 times"), ("page", "x", "0 times"), ("slot + 1", "slot +", "not compile")],
)
def test_a_fault_that_does_not_apply_is_refused(
    source: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    fault = Fault("n", "engine==1", "A reason.", (Edit("engine/pool.py", old, new),))
    with pytest.raises(ValueError, match=message):
        plant(fault, source, tmp_path / "target")


USUAL = FaultRun("engine==1", End.FOUND, keys=("leak | a",))


@pytest.mark.parametrize(
    ("record", "status", "bad"),
    [
        ({"findings": [{"key": "leak | a", "check": "leak"}]}, End.MISSED, True),
        ({"findings": [{"key": "stray | b", "check": "stray write"}]}, End.FOUND, False),
        (
            {"findings": [{"key": "leak | a", "check": "stray write", "changes": ["a line"]}]},
            *(End.FOUND, False),
        ),
        ({"configs": [{"ending": "failed by itself"}]}, End.STOPPED, True),
        ({"undecided": ["no replay"]}, End.UNDECIDED, True),
    ],
)
def test_only_a_finding_that_the_unmodified_engine_lacks_counts(
    record: dict[str, Any], status: End, bad: bool
) -> None:
    outcome = FaultRun("engine==1", name="n", **judge(record, USUAL))
    fault = Fault("n", "engine==1", "A reason.", FAULT.edits, found="stray write")
    assert (outcome.status, differs(fault, outcome, USUAL)) == (status, bad)
    harmless = Fault("n", "engine==1", "A reason.", FAULT.edits, harmless=True)
    assert differs(harmless, outcome, USUAL) == (status is not End.MISSED)


@pytest.mark.parametrize("engine", sorted({fault.engine for _, fault in ROWS}))
def test_each_fault_applies_to_its_release(engine: str) -> None:
    name, _, version = engine.partition("==")
    releases = package_of(version, name).parent.parent
    for _, fault in ROWS:
        if fault.engine == engine and (releases / fault.source).is_dir():
            fault.changed(releases / fault.source)
