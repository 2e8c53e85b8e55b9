"""The table of expectations: which bug affects which runner, and which property detects it.

`test_engine` hunts the bugs. Here the table is whole, and a wrong row is found out.
"""

from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.task import Task, run_task
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.schema import Status
from paritybit.subjects.bugs.catalogue import BUGS, FIRST
from paritybit.subjects.runners import RUNNERS

from paritybit.compat import tomllib
from paritybit.places import SOURCES
from properties.support.harness.scripted import searched

FEW = 4


def trial_of(bug: str, runner: str, device: str) -> TrialConfig:
    """Return a trial of a bug with two captured sizes."""
    return TrialConfig(runner, device=device, buckets=(2, 4), token_buckets=(4, 12)).with_bug(bug)


def one_unaffected_per_bug() -> list[tuple[str, str]]:
    """Return each historical bug with a runner that it does not affect, if there is one.

    Variants by site that leave the same runner alone are one bug; `regress` hunts all.
    """
    last = {bug: runner for bug in FIRST for runner in BUGS[bug].unaffected}
    apart = {(bug.partition(".")[0], runner): bug for bug, runner in last.items()}
    return [(bug, runner) for (_, runner), bug in apart.items()]


@pytest.mark.parametrize(("bug", "runner"), one_unaffected_per_bug())
def test_a_bug_shows_in_no_step_of_a_runner_that_it_does_not_affect(
    bug: str, runner: str, device: str
) -> None:
    """No property sees it, over schedules that replay with padding."""
    result = run_task(Task(trial_of(bug, runner, device), 0, FEW))
    assert result.status is Status.UNAFFECTED


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"expected": {"cpu_graph": "log_hygiene"}}, Status.MISSED),
        (
            {"expected": {}, "unaffected": {"cpu_graph": "the row says that it is right"}},
            Status.AFFECTED_AFTER_ALL,
        ),
    ],
    ids=["another property", "another runner"],
)
def test_a_wrong_row_of_the_table_is_found_out(
    changes: dict[str, Any], status: Status, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(BUGS["req_pool_pad"], **changes)
    monkeypatch.setitem(BUGS, "req_pool_pad", wrong)
    assert run_task(Task(trial_of("req_pool_pad", "cpu_graph", device), 0, FEW)).status is status


RAISES = "def fail(*_, **__):\n    raise IndexError('out of bounds')\n"


@pytest.mark.parametrize(
    ("bug", "runner"),
    [("plan_by_host_address", "decode"), ("masked_values_loaded", "target_verify")],
)
def test_a_bug_whose_code_raises_is_not_detected(
    bug: str, runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code: dict[str, Any] = {}
    exec(compile(RAISES, str(SOURCES / "subjects" / "bugs" / "raises.py"), "exec"), code)
    for part in BUGS[bug].parts:
        for name, function in list(vars(part).items()):
            if isfunction(function):
                monkeypatch.setattr(part, name, code["fail"])
    found = searched(monkeypatch)
    result = run_task(Task(trial_of(bug, runner, device), 0, FEW))
    assert result.status is Status.WRONG_PROPERTY
    seen = result.finding.violations if result.finding is not None else ()
    assert {*found[0].violated, *(one.property for one in seen)} == {"no_crash"}


def test_every_bug_and_runner_is_decided_once_and_names_its_public_thread() -> None:
    """A pair is affected, or there is a reason; the table names no runner that there is not."""
    for bug in BUGS.values():
        assert not bug.expected.keys() & bug.unaffected.keys()
        assert {*bug.expected, *bug.unaffected} <= RUNNERS.keys()
        assert bug.expected.keys() | bug.unaffected.keys()
        assert bug.thread.startswith("https://github.com/"), bug.name
        assert len(bug.mechanism) > 20, bug.name


def test_each_listed_pair_of_property_and_runner_is_covered_by_a_bug() -> None:
    listed = tomllib.loads(Path(__file__).with_name("covered_pairs.toml").read_text())
    pairs = {(target, runner) for target, runners in listed.items() for runner in runners}
    covered = {(target, runner) for bug in BUGS.values() for runner, target in bug.expected.items()}
    assert pairs - covered == set()
