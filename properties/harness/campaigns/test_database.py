"""The example database that runs share: what one found, another tries on the clean build first."""

from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.campaigns.hunt import hunt
from paritybit.harness.campaigns.regress import RunConfig, clean_tasks, hunting_tasks
from paritybit.harness.campaigns.spreading.database import Known, known, save
from paritybit.harness.campaigns.task import Source
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.errors import MalformedError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.buckets import SMALLEST
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule

from properties.support.harness.scripted import Scripted, clean, violating

ONE = Schedule((Admit(1, 16), Decode((0,))))
OTHER = Schedule((Admit(2, 16), Decode((0,))))


def case(runner: str, schedule: Schedule) -> Case:
    """Return a case that needs nothing played before it."""
    return Case(TrialConfig(runner), schedule, None, 0, ())


def test_what_is_saved_is_known_by_its_runner_each_schedule_once(tmp_path: Path) -> None:
    """In an order that does not depend on which run found it first."""
    cases = [case("decode", ONE), case("decode", OTHER), case("breakable", ONE)]
    save(tmp_path / "a", [*cases, replace(cases[0], target="kv_parity")])
    save(tmp_path / "b", reversed(cases))
    found = known(tmp_path / "a")
    assert set(found.by_runner["decode"]) == {ONE, OTHER}
    assert (len(found.by_runner["decode"]), found.by_runner["breakable"]) == (2, (ONE,))
    assert known(tmp_path / "b").by_runner == found.by_runner


def test_a_case_that_needs_others_before_it_is_not_saved(tmp_path: Path) -> None:
    save(tmp_path, [replace(case("decode", ONE), history=(OTHER,))])
    assert known(tmp_path) == Known() == known(tmp_path / "none")


def test_what_this_build_cannot_read_is_counted(tmp_path: Path) -> None:
    save(tmp_path, [case("decode", ONE)])
    foreign = (b"{}", b"\xff", b'{"format": "paritybit-case", "version": 99}', b"[" * 100_000)
    for number, text in enumerate(foreign):
        (tmp_path / f"{number}.json").write_bytes(text)
    assert known(tmp_path) == Known({"decode": (ONE,)}, unread=len(foreign))
    (tmp_path / "file").touch()
    with pytest.raises(MalformedError, match="cannot write to the database folder"):
        known(tmp_path / "file")


def test_every_clean_trial_of_a_runner_tries_what_failed_on_it_and_no_hunt_does() -> None:
    settings = RunConfig("cpu", known=Known({"decode": (ONE,)}))
    for task in clean_tasks(settings):
        usual = task.trial.buckets != SMALLEST and not (task.trial.overlap or task.trial.features)
        tried = task.trial.runner == "decode" and task.source is Source.GENERATED and usual
        assert task.first[:1] == (ONE,) if tried else ONE not in task.first
    assert all(not task.first for task in hunting_tasks(settings))


def test_known_schedules_are_played_before_any_is_drawn() -> None:
    """And count among those that were; the first that fails ends the hunt."""

    def fails(_: Scripted, schedule: Schedule) -> Outcome:
        return violating("kv_parity") if schedule == OTHER else clean()

    lockstep: Lockstep = Scripted(TrialConfig(), fails)  # type: ignore[assignment]
    found = hunt(lockstep, None, 0, 5, first=(ONE, OTHER), shrinks=False)
    assert (found.schedule, found.schedules) == (OTHER, 2)
    found = hunt(lockstep, None, 0, 5, first=(ONE,), shrinks=False)
    assert (found.schedule, found.schedules) == (None, 6)
