"""The finding of a task: a shrunk schedule, its violations, and their cause."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.harness.campaigns.confirm import Confirmed
from paritybit.harness.checks.play import Outcome
from paritybit.harness.explain.facts import Explanation, TimelineEntry
from paritybit.harness.explain.report import NOT_EXPLAINED, Explained
from paritybit.harness.schedules.schedule import Schedule


@dataclass(frozen=True)
class Finding:
    """A shrunk schedule, and all its violations with all properties on.

    - `explanation`: the report about its violation, or None without one.
    - `error`: the traceback of the explainer, if it failed.
    - `undeclared`: no fresh process reproduces it. `schedule` is then not shrunk, and `history` has
      the schedules to play before it.
    """

    schedule: Schedule
    violations: tuple[dict[str, Any], ...]
    timeline: tuple[TimelineEntry, ...]
    explanation: Explanation | None = None
    error: str | None = None
    undeclared: bool = False
    history: tuple[Schedule, ...] = ()

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        outcome: Outcome,
        timeline: Sequence[TimelineEntry] = (),
        found: Explained = NOT_EXPLAINED,
    ) -> "Finding":
        """Return the finding from one playing."""
        violations = tuple(violation.to_json() for violation in outcome.violations)
        return cls(schedule, violations, tuple(timeline), found.explanation, found.error)

    @classmethod
    def of_undeclared_state(cls, confirmed: Confirmed) -> "Finding":
        """Return the finding that no fresh process reproduces. It has no explanation."""
        violations = tuple(violation.to_json() for violation in confirmed.violations)
        return cls(confirmed.schedule, violations, (), undeclared=True, history=confirmed.history)
