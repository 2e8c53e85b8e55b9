"""The locksteps that a process keeps."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.explain.facts import TimelineEntry
from paritybit.harness.explain.reach import Reaching
from paritybit.harness.explain.report import Explained, explanation
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.bugs.catalogue import BUGS

Build = Callable[[TrialConfig], Lockstep]


class Locksteps:
    """Locksteps by trial. Each is built once."""

    def __init__(self, build: Build = Lockstep) -> None:
        self.build = build
        self.held: dict[TrialConfig, Lockstep] = {}

    def __call__(self, trial: TrialConfig) -> Lockstep:
        """Return the lockstep of a trial."""
        if trial not in self.held:
            self.held[trial] = self.build(trial)
        return self.held[trial]


@lru_cache(maxsize=1)
def kept_clean(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a clean trial, kept for all bugs that are compared with it."""
    return Lockstep(trial)


@lru_cache(maxsize=1)
def kept_broken(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a trial with a bug, kept for consecutive tasks of this trial."""
    return Lockstep(trial)


def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the kept lockstep of a trial."""
    return kept_clean(trial) if trial.bug is None else kept_broken(trial)


@lru_cache(maxsize=1)
def kept_reaching(trial: TrialConfig) -> Reaching:
    """Return the `Reaching` of a trial with a bug. Its clean engine is captured once."""
    assert trial.bug is not None
    return Reaching(kept_lockstep(trial).pair, BUGS[trial.bug])


def explained(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explained:
    """Explain the violations of a schedule.

    An error of the explainer becomes a traceback: the violations stay as they are.
    """
    try:
        return Explained(explanation(lockstep, schedule, outcome, timeline, target))
    except Exception as error:
        return Explained(error=traceback_of(error))
