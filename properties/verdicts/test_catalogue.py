"""Every bug that other engines had is detected as the table names, and the schedule alone is clean.

One runner of each, one captured size, nothing shrunk: the main job hunts them on all runners.
"""

from dataclasses import replace
from functools import cache

import pytest
from paritybit.harness.campaigns.hunt import hunt, hunted
from paritybit.harness.campaigns.task import watched_for
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import subject_alone
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.catalogue import BUGS, FIRST

from properties.support.bug_pairs import CATALOGUED, Pair, detecting, pair_name

EXAMPLES = 50

SMALL = TrialConfig(buckets=(4,), token_buckets=(12,))
"""What a catalogued bug is tried on unless it needs anything else."""

NEEDED: dict[str, dict[str, object]] = {
    "workspace_regrown_by_capture": {"buckets": (2, 4)},
}
"""What a bug needs of its trial to show at all, by its name."""

OF_MEMORY = {"freed workspace", "cache that outlives what it holds"}
"""Families of bugs that may show in memory that a fresh engine takes as it is captured."""


def trial_of(pair: Pair, device: str) -> TrialConfig:
    """Return the trial of a bug on a runner."""
    bug, runner = pair
    wanted = replace(SMALL, runner=runner, device=device)
    return replace(wanted.with_bug(bug), **NEEDED.get(bug, {}))  # type: ignore[arg-type]


def broken_lockstep(trial: TrialConfig, target: str) -> Lockstep:
    """Return the lockstep of a bug, without a fresh engine if nothing needs one."""
    watched = watched_for(target)
    needed = hunted(target, watched)
    asking = [name for name in needed if PROPERTIES[name].extra_run]
    if asking or BUGS[str(trial.bug)].family in OF_MEMORY:
        return Lockstep(trial, watched)
    return Lockstep(trial, needed, engines=subject_alone)


@cache
def right_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the clean build of a trial, built once for all bugs."""
    return Lockstep(trial)


@cache
def right_outcome(trial: TrialConfig, schedule: Schedule, watched: frozenset[str]) -> Outcome:
    """Return what the clean build of a trial gives; many bugs show in the same schedule."""
    lockstep = right_lockstep(trial)
    lockstep.watch(watched)
    return lockstep.play(schedule)


@pytest.mark.usefixtures("captures_when_needed")
@pytest.mark.parametrize("pair", CATALOGUED, ids=pair_name)
def test_a_catalogued_bug_is_detected_by_its_property_and_green_without_it(
    pair: Pair, device: str, hunter_seed: int
) -> None:
    trial, target = trial_of(pair, device), detecting(*pair)
    lockstep = broken_lockstep(trial, target)
    found = hunt(lockstep, target, hunter_seed, EXAMPLES, shrinks=False)
    assert found.error is None
    assert found.schedule is not None
    clean = right_outcome(trial.clean, found.schedule, watched_for(target))
    assert (clean.error, clean.violations) == (None, ())


def catalogued() -> list[Bug]:
    """Return the bugs of the public catalogue."""
    return [bug for name, bug in BUGS.items() if name not in FIRST]


def test_every_catalogued_bug_names_its_public_thread_and_says_how_it_works() -> None:
    for bug in catalogued():
        assert bug.thread.startswith("https://github.com/"), bug.name
        assert len(bug.mechanism) > 40, bug.name
