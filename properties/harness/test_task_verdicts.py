"""How a task ends where the table of expectations, or the bug itself, is wrong.

The bug is of the CPU graph runner: its engine is built at once.
"""

from dataclasses import replace

import pytest
from paritybit.harness.campaigns.task import Status, Task, run_task
from paritybit.harness.checks.expectations import TABLE
from paritybit.harness.checks.expected import COMPILED
from paritybit.harness.lockstep.config import TrialConfig

BUG, RUNNER = "req_pool_pad", "cpu_graph"


def status(device: str, examples: int = 3) -> Status:
    """Return how the task of hunting the bug ends."""
    trial = TrialConfig(RUNNER, device=device, buckets=(2, 4)).with_bug(BUG)
    return run_task(Task(trial, 0, examples)).status


def test_a_bug_of_the_wrong_property_is_red(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that names another property is found out."""
    monkeypatch.setitem(TABLE, BUG, replace(TABLE[BUG], detected_by="log_hygiene"))
    assert status(device) is Status.WRONG_PROPERTY


def test_a_bug_that_affects_a_runner_that_it_should_not_is_red(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that calls a bug harmless is found out."""
    row = TABLE[BUG]
    harmless = replace(
        row,
        affected=row.affected - {COMPILED},
        unaffected={**row.unaffected, COMPILED: "it is said to be right"},
    )
    monkeypatch.setitem(TABLE, BUG, harmless)
    assert status(device) is Status.AFFECTED_AFTER_ALL
