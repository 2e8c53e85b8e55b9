"""What a clean build must pass: every property, over generated schedules and real traffic.

A trial is surveyed once per worker; each property then has a verdict, and a case
file, of its own. With `--bug` the same suite runs on the broken subject.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from harness.campaigns.case import Case, write_case
from harness.campaigns.hunt import HuntResult, first_failure, hunt, play_all
from harness.checks.explanation import explanation, observe
from harness.checks.play import Lockstep
from harness.checks.table import PROPERTIES, STEP_PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.schedules.schedule import Schedule
from harness.schedules.traffic import traffic_schedules
from properties.trials import name
from reference.batch import Mode
from reference.config import PRESETS
from subjects.runners import engine_runners

pytestmark = pytest.mark.clean

TRAFFIC_SEEDS = 97


@dataclass
class Survey:
    """What the schedules of one trial gave, with every property on."""

    trial: TrialConfig
    generated: HuntResult
    traffic: HuntResult

    @property
    def violated(self) -> Counter[str]:
        """How many schedules violated each property."""
        return self.generated.violated + self.traffic.violated


SURVEYS: dict[TrialConfig, Survey] = {}


def traffic_of(trial: TrialConfig, seed: int) -> list[Schedule]:
    """Return the piece of traffic that a trial is surveyed on: decoding, or speculation."""
    speculates = Mode.TARGET_VERIFY in trial.modes
    return traffic_schedules(
        PRESETS[trial.preset].tiny,
        max(trial.buckets),
        trial.room,
        1,
        seed % TRAFFIC_SEEDS,
        Mode.TARGET_VERIFY if speculates else Mode.DECODE,
    )


def surveyed(trial: TrialConfig, seed: int, played: Counter[str]) -> Survey:
    """Return the survey of a trial, made and counted in `played` on first use."""
    if trial not in SURVEYS:
        lockstep = Lockstep(trial, frozenset(PROPERTIES))
        generated = play_all(lockstep, seed, settings().max_examples)
        traffic = HuntResult()
        for piece in traffic_of(trial, seed):
            traffic.add(lockstep.play(piece))
        SURVEYS[trial] = Survey(trial, generated, traffic)
        played["trials"] += 1
        for key in ("schedules", "steps", "replays", "padded_replays"):
            played[key] += getattr(generated, key) + getattr(traffic, key)
    return SURVEYS[trial]


@pytest.mark.parametrize("property_id", PROPERTIES)
def test_a_clean_subject_keeps(
    property_id: str,
    clean_trial: TrialConfig,
    hunter_seed: int,
    artifacts: Path,
    played: Counter[str],
) -> None:
    survey_of = surveyed(clean_trial, hunter_seed, played)
    if not survey_of.violated[property_id]:
        return
    pytest.fail(failure(survey_of, property_id, hunter_seed, artifacts))


def test_a_survey_is_not_vacuous(
    clean_trial: TrialConfig, hunter_seed: int, played: Counter[str]
) -> None:
    """Every runner of the engine replayed, with padding too, and both sources asked the oracle."""
    survey_of = surveyed(clean_trial, hunter_seed, played)
    events = survey_of.generated.events + survey_of.traffic.events
    for runner in engine_runners(clean_trial.runner):
        assert events[f"{runner.name}: replay"] > 0
        assert events[f"{runner.name}: padded replay"] > 0
    for source in (survey_of.generated, survey_of.traffic):
        assert source.events["held against the oracle"] > 0


def test_several_buckets_were_replayed(
    clean_trial: TrialConfig, hunter_seed: int, played: Counter[str]
) -> None:
    """Of the two runners that every engine has work for: those that decode and that prefill."""
    survey_of = surveyed(clean_trial, hunter_seed, played)
    events = survey_of.generated.events + survey_of.traffic.events
    for runner in engine_runners(clean_trial.runner):
        buckets = clean_trial.token_buckets if runner.token_buckets else clean_trial.buckets
        if runner.mode in {Mode.DECODE, Mode.EXTEND}:
            assert sum(events[f"{runner.name}: bucket {bucket}"] > 0 for bucket in buckets) > 1


def failure(survey_of: Survey, property_id: str, seed: int, artifacts: Path) -> str:
    """Shrink a schedule that violates a property, write its case, and tell of it."""
    trial = survey_of.trial
    lockstep = Lockstep(trial, STEP_PROPERTIES | {property_id})
    hunt_result = hunt(lockstep, property_id, seed, settings().max_examples)
    if hunt_result.schedule is None:
        hunt_result = first_failure(lockstep, traffic_of(trial, seed), property_id)
    if hunt_result.schedule is None:
        return f"{property_id} was violated in the survey, but not when hunted: is it flaky?"
    lockstep.watch(PROPERTIES)
    outcome, timeline = observe(lockstep, hunt_result.schedule)
    cause = explanation(lockstep, hunt_result.schedule, outcome, timeline, property_id)
    proof = "".join(f"{sentence}\n" for sentence in cause.proof) if cause is not None else ""
    violations = tuple(each.to_json() for each in outcome.violations)
    path = artifacts / f"{property_id}-{name(trial)}.json"
    write_case(Case(trial, hunt_result.schedule, property_id, seed, violations), path)
    message = next(each for each in outcome.violations if each.property == property_id)
    return (
        f"{property_id}: step {message.step} of {len(hunt_result.schedule.steps)}:"
        f" {message.message}\n"
        f"{proof}case: {path.name}, to be found in reports/out/pytest/cases;"
        f" replay with: paritybit replay reports/out/pytest/cases/{path.name}"
    )
