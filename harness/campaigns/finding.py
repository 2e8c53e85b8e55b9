"""What a task found: a shrunk schedule, what it violates, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.harness.campaigns.confirm import Confirmed
from paritybit.harness.checks.explanation import NOT_EXPLAINED, Explained
from paritybit.harness.checks.play import Outcome
from paritybit.harness.explain.facts import Explanation, TimelineEntry
from paritybit.harness.schedules.schedule import Schedule


@dataclass(frozen=True)
class Finding:
    """A shrunk schedule that violates something, and every violation with all properties on.

    `explanation` is the root cause, where one was found; `error` is the traceback of an
    explainer that failed. Of one that no fresh process shows, which is `undeclared`, `schedule`
    is as it was drawn, and `history` what must be played before it.
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
        """Return the finding of one playing."""
        violations = tuple(violation.to_json() for violation in outcome.violations)
        return cls(schedule, violations, tuple(timeline), found.explanation, found.error)

    @classmethod
    def of_undeclared_state(cls, confirmed: Confirmed) -> "Finding":
        """Return the finding that no fresh process shows: nothing of it can be explained."""
        violations = tuple(violation.to_json() for violation in confirmed.violations)
        return cls(confirmed.schedule, violations, (), undeclared=True, history=confirmed.history)
