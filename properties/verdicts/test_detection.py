"""Every bug is detected on every runner that it affects, by the property that the table names.

The table is written before a bug is hunted. A bug that only another property sees is red, and
so is one that shows on a runner that it is said not to affect.
"""

from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.hunt import hunt
from paritybit.harness.campaigns.task import Task, run_task
from paritybit.harness.checks.expectations import (
    affected_runners,
    detected_by,
    unaffected_reason,
)
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.tracebacks import SUBJECTS
from paritybit.harness.records.schema import Status
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.expected import DECODE
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS

from paritybit.compat import tomllib
from properties.support.bug_pairs import (
    MOST_REQUESTS,
    ONE_RUNNER_PER_BUG,
    ONE_UNAFFECTED_PER_BUG,
    Pair,
    detecting,
    pair_name,
)
from properties.support.harness.shrunk_sizes import most_steps
from properties.support.trials import bug_trial

EXAMPLES = 50
FEW = 4


@pytest.fixture
def trial(pair: Pair, device: str, request: pytest.FixtureRequest) -> TrialConfig:
    """The trial of a bug on a runner, on the preset that was asked for or on the pair's own."""
    return bug_trial(*pair, device, request.config.getoption("--preset"))


@pytest.mark.usefixtures("captures_when_needed")
@pytest.mark.parametrize("pair", ONE_RUNNER_PER_BUG, ids=pair_name)
def test_a_bug_is_detected_and_shrinks_and_what_shows_it_is_green_without_it(
    pair: Pair, trial: TrialConfig, hunter_seed: int
) -> None:
    """Within 50 schedules, near minimal, seen with every property on, green without it."""
    lockstep, target = Lockstep(trial), detecting(*pair)
    schedule = hunt(lockstep, target, hunter_seed, EXAMPLES).schedule
    assert schedule is not None
    assert len(schedule.steps) <= most_steps(pair[0])
    assert sum(step.name == "admit" for step in schedule.steps) <= MOST_REQUESTS
    lockstep.watch(PROPERTIES)
    assert target in lockstep.play(schedule).violated
    clean = Lockstep(trial.clean, PROPERTIES).play(schedule)
    assert (clean.error, clean.violations) == (None, ())


@pytest.mark.parametrize("pair", ONE_UNAFFECTED_PER_BUG, ids=pair_name)
def test_a_bug_shows_in_no_step_of_a_runner_that_it_does_not_affect(
    pair: Pair, trial: TrialConfig, hunter_seed: int
) -> None:
    """No property sees it, over schedules that replay with padding."""
    result = run_task(Task(trial, hunter_seed, FEW))
    assert result.status is Status.UNAFFECTED


RAISES = "def fail(*_, **__):\n    raise IndexError('out of bounds')\n"


@pytest.mark.parametrize(
    "pair",
    [
        ("longest_key_count_baked", "decode"),
        ("kernel_not_recorded", "decode"),
        ("masked_values_loaded", "target_verify"),
    ],
    ids=pair_name,
)
def test_a_bug_whose_code_raises_is_not_detected(
    pair: Pair, trial: TrialConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    code: dict[str, Any] = {}
    exec(compile(RAISES, str(SUBJECTS / "bugs" / "raises.py"), "exec"), code)
    for part in BUGS[pair[0]].parts.values():
        for name, function in list(vars(part).items()):
            if isfunction(function):
                monkeypatch.setattr(part, name, code["fail"])
    result = run_task(Task(trial, 0, FEW))
    assert result.status is Status.WRONG_PROPERTY
    seen = result.finding.violations if result.finding is not None else ()
    assert {*result.hunt_result.violated, *(one.property for one in seen)} == {"no_crash"}


def test_every_bug_and_runner_is_decided_once() -> None:
    """A pair is affected, or there is a reason; and not both."""
    for bug in BUGS.values():
        for runner in RUNNERS:
            reason = unaffected_reason(bug, runner)
            assert (reason is None) == (runner in affected_runners(bug))
            assert reason is None or len(reason) > 10
            assert not (reason is None and lacking(bug, runner))
        assert not bug.expected.affected & bug.expected.unaffected.keys()


def test_each_listed_pair_of_property_and_runner_is_covered_by_a_bug() -> None:
    listed = tomllib.loads(Path(__file__).with_name("covered_pairs.toml").read_text())
    pairs = {(target, runner) for target, runners in listed.items() for runner in runners}
    bugs = [(bug, runner) for bug in BUGS.values() for runner in affected_runners(bug)]
    covered = {(detected_by(bug, runner), runner) for bug, runner in bugs}
    assert pairs - covered == set()


def test_an_undecided_pair_is_an_error() -> None:
    bug = BUGS["req_pool_pad"]
    row = replace(bug.expected, affected=bug.expected.affected - {DECODE})
    with pytest.raises(KeyError, match="decided"):
        unaffected_reason(replace(bug, expected=row), "decode")
