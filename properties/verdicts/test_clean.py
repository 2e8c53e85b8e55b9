"""What a clean build must pass: every property, over generated schedules.

All schedules of a trial are played once per worker; every property then has a verdict, and a
case file, of its own. With `--bug` the same suite runs on the broken subject.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from paritybit.harness.campaigns.confirm import confirmed
from paritybit.harness.campaigns.fresh import play_fresh
from paritybit.harness.campaigns.hunt import HuntResult, draw, hunt
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.explain.report import explanation, observe
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, write_case
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.batch import Mode
from paritybit.subjects.runners import engine_runners

from properties.support.trials import name

pytestmark = pytest.mark.clean


@dataclass
class Survey:
    """What the schedules of one trial gave, with every property on.

    `error` is the traceback of the first playing that failed: then nothing is proved.
    """

    trial: TrialConfig
    played: HuntResult = field(default_factory=HuntResult)
    error: str | None = None

    def play(self, lockstep: Lockstep, schedule: Schedule) -> None:
        """Play one schedule and count it."""
        outcome = lockstep.play(schedule)
        self.played.add(outcome)
        self.error = self.error or outcome.error


SURVEYS: dict[TrialConfig, Survey] = {}


def surveyed(trial: TrialConfig, seed: int, played: Counter[str]) -> Survey:
    """Return the survey of a trial, made and counted in `played` on first use.

    Fails where a playing failed, whatever property was asked about.
    """
    if trial not in SURVEYS:
        lockstep = Lockstep(trial, frozenset(PROPERTIES))
        survey = SURVEYS[trial] = Survey(trial)
        draw(trial, lambda drawn: survey.play(lockstep, drawn), seed, settings().max_examples)
        played["trials"] += 1
        for key in ("schedules", "steps", "replays", "padded_replays"):
            played[key] += getattr(survey.played, key)
    if SURVEYS[trial].error is not None:
        pytest.fail(f"a playing failed, so that nothing is proved:\n{SURVEYS[trial].error}")
    return SURVEYS[trial]


@pytest.mark.parametrize("property_id", PROPERTIES)
def test_a_clean_subject_keeps(
    property_id: str,
    clean_trial: TrialConfig,
    hunter_seed: int,
    artifacts: Path,
    played: Counter[str],
) -> None:
    survey = surveyed(clean_trial, hunter_seed, played)
    if survey.played.violated[property_id]:
        pytest.fail(failure(survey, property_id, hunter_seed, artifacts))


def test_a_survey_is_not_vacuous(
    clean_trial: TrialConfig, hunter_seed: int, played: Counter[str]
) -> None:
    """Every runner of the engine replayed, with padding too, and the oracle was asked."""
    survey = surveyed(clean_trial, hunter_seed, played)
    events = survey.played.events
    for runner in engine_runners(clean_trial.runner):
        assert events[f"{runner.name}: replay"] > 0
        assert events[f"{runner.name}: padded replay"] > 0
    assert events["held against the oracle"] > 0


def test_several_buckets_were_replayed(
    clean_trial: TrialConfig, hunter_seed: int, played: Counter[str]
) -> None:
    """By the runners that every engine has work for: those that decode and those that prefill."""
    survey = surveyed(clean_trial, hunter_seed, played)
    events = survey.played.events
    for runner in engine_runners(clean_trial.runner):
        buckets = clean_trial.token_buckets if runner.token_buckets else clean_trial.buckets
        if runner.mode in {Mode.DECODE, Mode.EXTEND}:
            assert sum(events[f"{runner.name}: bucket {bucket}"] > 0 for bucket in buckets) > 1


def failure(survey: Survey, property_id: str, seed: int, artifacts: Path) -> str:
    """Shrink a schedule that violates a property and write its case; return the message."""
    trial = survey.trial
    lockstep = Lockstep(trial, STEP_PROPERTIES | {property_id})
    hunt_result = hunt(lockstep, property_id, seed, settings().max_examples)
    if hunt_result.schedule is None:
        return (
            f"{property_id} was violated at first, but not when hunted anew: it is flaky, or"
            " depends on state that no one declared"
        )
    shown = confirmed(trial, hunt_result, property_id, (), play_fresh)
    violations, proof = shown.violations, f"{shown.undeclared and shown.undeclared.message}\n"
    if shown.undeclared is None:
        lockstep.watch(PROPERTIES)
        outcome, timeline = observe(lockstep, shown.schedule)
        cause = explanation(lockstep, shown.schedule, outcome, timeline, property_id)
        proof = "".join(f"{sentence}\n" for sentence in cause.proof) if cause is not None else ""
        violations = outcome.violations
    path = artifacts / f"{property_id}-{name(trial)}.json"
    case = Case(trial, shown.schedule, property_id, seed, tuple(violations), shown.history)
    write_case(case, path)
    found = next(one for one in violations if one.property == property_id)
    return (
        f"{property_id}: step {found.step} of {len(shown.schedule.steps)}: "
        f"{found.message}\n{proof}case: {path.name}, to be found in "
        "paritybit-out/pytest/cases; to replay: paritybit replay "
        f"paritybit-out/pytest/cases/{path.name}"
    )
