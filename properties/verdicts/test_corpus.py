"""The corpus: a minimal case of each historical bug, on one of the runners that it affects.

Each case shows its bug as it did when it was found, and nothing without the bug.
"""

from dataclasses import replace

import pytest
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load
from paritybit.subjects.bugs.catalogue import BUGS, FIRST

from properties.support.places import CORPUS

MOST_STEPS = 6
"""As many steps as the mechanism of any of these bugs needs, or one more."""

CASES = {path.stem: load(path, Case) for path in sorted(CORPUS.glob("*.json"))}
CLEAN = sorted({case.trial.clean for case in CASES.values()}, key=str)
"""The clean trials of all cases: those of a trial share the clean build that they are held to."""


def test_the_corpus_has_a_case_of_every_historical_bug() -> None:
    """Variants by site apart."""
    assert {name.partition("@")[0] for name in CASES} == {one for one in FIRST if "." not in one}
    for name, case in CASES.items():
        assert name == f"{case.trial.bug}@{case.trial.runner}"
        assert case.trial.bug is not None
        assert case.target == BUGS[case.trial.bug].expected[case.trial.runner]
        assert (case.trial.device, case.seed) == ("cpu", 0)
        assert len(case.schedule.steps) <= MOST_STEPS


def trial_name(trial: TrialConfig) -> str:
    """Return a clean trial in a test id."""
    return f"{trial.runner}-{trial.scheme}"


@pytest.mark.parametrize("clean", CLEAN, ids=trial_name)
def test_a_case_shows_its_bug_and_nothing_without_it(clean: TrialConfig, device: str) -> None:
    """With every property on, on this session's device."""
    right = SchedulePlayer(replace(clean, device=device), PROPERTIES)
    cases = {name: case for name, case in CASES.items() if case.trial.clean == clean}
    for name, case in cases.items():
        broken = SchedulePlayer(replace(case.trial, device=device), PROPERTIES)
        outcome = broken.play(case.schedule)
        assert case.target in outcome.violated, name
        if device == case.trial.device:
            seen = [(violation.property, violation.step) for violation in outcome.violations]
            assert seen == recorded(case), name
        outcome = right.play(case.schedule)
        assert outcome.violations == (), name
        assert outcome.steps > 0, name


def recorded(case: Case) -> list[tuple[str, int]]:
    """Return what a case violated when it was found, and when."""
    return [(violation.property, violation.step) for violation in case.violations]
