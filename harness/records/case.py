"""Case files: one failing schedule that anyone can replay, independent of Hypothesis."""

from typing import Literal

from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import require_known
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.codec import File
from paritybit.harness.schedules.schedule import Schedule


class Case(File, frozen=True, tag="paritybit-case"):
    """A schedule, its trial, and its violations when it was found.

    - `target`: the property that the hunt looked for, or None for any.
    - `seed`: the seed of the hunt.
    """

    trial: TrialConfig
    schedule: Schedule
    target: str | None
    seed: int
    violations: tuple[Violation, ...]
    version: Literal[4] = 4

    def __post_init__(self) -> None:
        """Raise UnknownNameError for an unknown target."""
        if self.target is not None:
            require_known("property", self.target, PROPERTIES)

    @property
    def expected(self) -> frozenset[str]:
        """The properties that must be violated: the target, or all recorded ones."""
        if self.target is not None:
            return frozenset({self.target})
        return frozenset(violation.property for violation in self.violations)


def file_name(case: Case) -> str:
    """Return the name of a case's file."""
    return f"{trial_name(case.trial)}.json"


def trial_name(trial: TrialConfig) -> str:
    """Return the name of a trial, which differs from those of the other trials of a run."""
    if trial.bug is not None:
        return f"{trial.bug}-{trial.runner}-{trial.preset}"
    overlap = "-overlap" if trial.overlap else ""
    return f"clean-{trial.runner}-{trial.preset}-{trial.scheme}{overlap}"
