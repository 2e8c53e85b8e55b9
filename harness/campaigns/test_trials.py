"""Clean trials and hunts, as tests. `paritybit regress` and the suite run them."""

from collections.abc import Callable

import pytest
from paritybit.harness.campaigns.task import Task
from paritybit.harness.records.schema import Status, TrialRow

RunTask = Callable[[Task], TrialRow]


@pytest.mark.clean
def test_clean_trial(task: Task, run: RunTask) -> None:
    """A right engine keeps every property. With `--bug`, the engine has that bug."""
    result = run(task)
    if result.status not in {Status.GREEN, Status.UNAFFECTED, Status.MISSED}:
        pytest.fail(result.sentence, pytrace=False)


def test_hunt(task: Task, run: RunTask) -> None:
    """A bug is detected by the expected property, and its schedule is clean without the bug."""
    result = run(task)
    if result.status not in {Status.CAUGHT, Status.UNAFFECTED}:
        pytest.fail(result.sentence, pytrace=False)
