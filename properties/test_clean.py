"""What a clean build must pass: every property, over generated schedules and real traffic.

A trial is surveyed once per worker; each property then has a verdict, and a case
file, of its own. With `--bug` the same suite runs on the broken subject.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from harness.case import Case, write_case
from harness.explain import explanation
from harness.hunt import Catch, hunt, survey, sweep
from harness.lockstep import Lockstep
from harness.schedule import Schedule
from harness.timeline import observe
from harness.traffic import traffic_schedules
from harness.trial import Trial
from harness.violation import PROPERTIES, STEP_PROPERTIES
from properties.trials import name
from reference.batch import Mode
from subjects.runners import lineup

pytestmark = pytest.mark.clean

TRAFFIC_SEEDS = 97


@dataclass
class Survey:
    """What the schedules of one trial gave, with every property on."""

    lockstep: Lockstep
    generated: Catch
    traffic: Catch

    @property
    def violated(self) -> Counter[str]:
        """How many schedules violated each property."""
        return self.generated.violated + self.traffic.violated


SURVEYS: dict[Trial, Survey] = {}


def traffic_of(lockstep: Lockstep, seed: int) -> list[Schedule]:
    """Return the piece of traffic that a trial is surveyed on: decoding, or speculation."""
    trial = lockstep.trial
    speculates = Mode.TARGET_VERIFY in trial.modes
    return traffic_schedules(
        lockstep.arms.config,
        max(trial.buckets),
        trial.room,
        1,
        seed % TRAFFIC_SEEDS,
        Mode.TARGET_VERIFY if speculates else Mode.DECODE,
    )


def surveyed(trial: Trial, seed: int, played: Counter[str]) -> Survey:
    """Return the survey of a trial, made and counted in `played` on first use."""
    if trial not in SURVEYS:
        lockstep = Lockstep(trial, frozenset(PROPERTIES))
        generated = survey(lockstep, seed, settings().max_examples)
        traffic = Catch()
        for piece in traffic_of(lockstep, seed):
            traffic.add(lockstep.play(piece))
        SURVEYS[trial] = Survey(lockstep, generated, traffic)
        played["trials"] += 1
        for key in ("schedules", "steps", "replays", "padded_replays"):
            played[key] += getattr(generated, key) + getattr(traffic, key)
    return SURVEYS[trial]


@pytest.mark.parametrize("property_id", PROPERTIES)
def test_a_clean_subject_keeps(
    property_id: str,
    clean_trial: Trial,
    hunter_seed: int,
    artifacts: Path,
    played: Counter[str],
) -> None:
    survey_of = surveyed(clean_trial, hunter_seed, played)
    if not survey_of.violated[property_id]:
        return
    pytest.fail(failure(survey_of, property_id, hunter_seed, artifacts))


def test_a_survey_is_not_vacuous(
    clean_trial: Trial, hunter_seed: int, played: Counter[str]
) -> None:
    """Every runner of the engine replayed, with padding too, and both sources asked the oracle."""
    survey_of = surveyed(clean_trial, hunter_seed, played)
    events = survey_of.generated.events + survey_of.traffic.events
    for runner in lineup(clean_trial.runner):
        assert events[f"{runner.name}: replay"] > 0
        assert events[f"{runner.name}: padded replay"] > 0
    for source in (survey_of.generated, survey_of.traffic):
        assert source.events["held against the oracle"] > 0


def test_several_buckets_were_replayed(
    clean_trial: Trial, hunter_seed: int, played: Counter[str]
) -> None:
    """Of the two runners that every engine has work for: those that decode and that prefill."""
    survey_of = surveyed(clean_trial, hunter_seed, played)
    events = survey_of.generated.events + survey_of.traffic.events
    for runner in lineup(clean_trial.runner):
        buckets = clean_trial.token_buckets if runner.token_buckets else clean_trial.buckets
        if runner.mode in {Mode.DECODE, Mode.EXTEND}:
            assert sum(events[f"{runner.name}: bucket {bucket}"] > 0 for bucket in buckets) > 1


def failure(survey_of: Survey, property_id: str, seed: int, artifacts: Path) -> str:
    """Shrink a schedule that violates a property, write its case, and tell of it."""
    lockstep, trial = survey_of.lockstep, survey_of.lockstep.trial
    lockstep.watch(STEP_PROPERTIES | {property_id})
    catch = hunt(lockstep, property_id, seed, settings().max_examples)
    if catch.schedule is None:
        catch = sweep(lockstep, traffic_of(lockstep, seed), property_id)
    if catch.schedule is None:
        lockstep.watch(PROPERTIES)
        return f"{property_id} was violated in the survey, but not when hunted: is it flaky?"
    lockstep.watch(PROPERTIES)
    outcome, timeline = observe(lockstep, catch.schedule)
    cause = explanation(lockstep, catch.schedule, outcome, timeline, property_id)
    proof = "".join(f"{sentence}\n" for sentence in cause["proof"]) if cause is not None else ""
    violations = tuple(each.to_json() for each in outcome.violations)
    path = artifacts / f"{property_id}-{name(trial)}.json"
    write_case(Case(trial, catch.schedule, property_id, seed, violations), path)
    told = next(each for each in outcome.violations if each.property == property_id)
    return (
        f"{property_id}: step {told.step} of {len(catch.schedule.steps)}: {told.told}\n"
        f"{proof}case: {path.name}, to be found in reports/out/pytest/cases;"
        f" replay with: paritybit replay reports/out/pytest/cases/{path.name}"
    )
