"""The table of faults is sound, and plants what it says."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from properties.sanitizer.planted.faults import TABLES, Fault, read
from properties.sanitizer.planted.plant import plant
from properties.sanitizer.planted.public_record import TABLE
from properties.sanitizer.planted.run import LEGS
from properties.support.releases import package_of

FAULTS = tuple(fault for table in TABLES for fault in read(table))
BOTH = (*FAULTS, *read(TABLE))
NEEDS = set().union(*LEGS)


def test_the_table_has_distinct_faults_of_many_classes() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.family for fault in FAULTS}) >= 12
    names = Counter((fault.engine, fault.name) for fault in FAULTS)
    assert all(count == 1 for count in names.values())
    edits = Counter((fault.release, fault.file, fault.old, fault.new) for fault in FAULTS)
    assert all(count == 1 for count in edits.values())


def test_each_fault_changes_something_and_says_why() -> None:
    for fault in BOTH:
        assert fault.old != fault.new, fault.name
        assert fault.why.endswith("."), fault.name
        assert set(fault.needs) <= NEEDS, fault.name


FAULT = Fault("n", "f", "engine/pool.py", "slot + 1", "slot", "A reason.")


def an_engine(folder: Path) -> Path:
    package = folder / "engine"
    package.mkdir(parents=True)
    (package / "pool.py").write_text("def next(slot):\n    return slot + 1\n")
    (package / "other.py").write_text("X = 1\n")
    return folder


def test_a_fault_is_planted_in_a_copy_only(tmp_path: Path) -> None:
    source, target = an_engine(tmp_path / "source"), tmp_path / "target"
    plant(FAULT, source, target)
    assert (source / FAULT.file).read_text() == "def next(slot):\n    return slot + 1\n"
    assert (target / FAULT.file).read_text() == "def next(slot):\n    return slot\n"
    assert (source / "engine/other.py").samefile(target / "engine/other.py")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "slot"}, "2 times"),
        ({"old": "page"}, "0 times"),
        ({"new": "slot +"}, "invalid syntax"),
    ],
)
def test_a_fault_that_does_not_apply_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plant(replace(FAULT, **changes), an_engine(tmp_path / "source"), tmp_path / "target")


RELEASES = sorted({(fault.engine, fault.release) for fault in BOTH})


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_each_fault_applies_to_its_release(engine: str, release: str) -> None:
    home = package_of(release, engine).parent
    for fault in BOTH:
        if (fault.engine, fault.release) == (engine, release):
            fault.planted_in((home / fault.file).read_text(encoding="utf-8"))
