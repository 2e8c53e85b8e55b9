"""Case files: one failing schedule that anyone can replay, independent of Hypothesis."""

from typing import Literal

from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import MalformedError, require_known
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.codec import File
from paritybit.harness.schedules.schedule import Schedule

MOST_SLOTS = 2**16
MOST_ROWS = 2**10
"""Size limits of a case, so that a wrong digit does not use all memory of the machine."""

MOST_STEPS = 2**16
"""The maximum number of steps of a schedule. They play for hours."""


class Case(File, frozen=True, tag="paritybit-case"):
    """A schedule, its trial, and its violations when it was found.

    - `target`: the property that the hunt looked for, or None for any.
    - `seed`: the seed of the hunt.

    Raises MalformedError for a case that is too large.
    """

    trial: TrialConfig
    schedule: Schedule
    target: str | None
    seed: int
    violations: tuple[Violation, ...]
    version: Literal[4] = 4

    def __post_init__(self) -> None:
        """Raise MalformedError for an unknown target, and for sizes that exceed the limits."""
        if self.target is not None:
            require_known("property", self.target, PROPERTIES)
        check_sizes(self.trial)
        if len(self.schedule.steps) > MOST_STEPS:
            raise MalformedError(f"a case has at most {MOST_STEPS} steps")

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


def check_sizes(trial: TrialConfig) -> None:
    """Raise MalformedError unless a trial's sizes are within the limits."""
    pools = trial.full_slots, trial.swa_slots
    if not all(trial.page_size <= slots <= MOST_SLOTS for slots in pools):
        raise MalformedError(
            f"the pools of a case have at least one page and at most {MOST_SLOTS} slots"
        )
    if not all(
        1 <= rows <= MOST_ROWS
        for rows in (*trial.buckets, *trial.token_buckets, max(trial.rows, 1))
    ):
        raise MalformedError(
            f"a case has at most {MOST_ROWS} rows; its buckets are between 1 and {MOST_ROWS}"
        )
