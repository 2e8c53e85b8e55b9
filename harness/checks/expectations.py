"""Which property must detect a bug on a runner, or why none can."""

from dataclasses import dataclass

from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.expected import RunnerKind
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS


@dataclass(frozen=True)
class Expectation:
    """The expected result for one bug on one runner. Exactly one field is not None.

    `detected_by` is the property that must be violated. `unaffected` is the reason why none is.
    """

    detected_by: str | None
    unaffected: str | None


def expectation(bug: Bug, runner: str) -> Expectation:
    """Return the expected result for `bug` on `runner`.

    Raises KeyError if the bug's row has no cell for this kind of runner.
    """
    lacks = lacking(bug, runner)
    if lacks is not None:
        return Expectation(None, lacks)
    row = bug.expected
    kind = RunnerKind(RUNNERS[runner].mode, RUNNERS[runner].captures)
    if kind in row.affected:
        return Expectation(row.instead.get(kind, row.detected_by), None)
    if kind in row.unaffected:
        return Expectation(None, row.unaffected[kind])
    raise KeyError(f"whether {bug.name} can affect {runner} is undecided; add it to the bug's row")


def unaffected_reason(bug: Bug, runner: str) -> str | None:
    """Return why `bug` cannot affect `runner`, or None if it can. Raises as `expectation` does."""
    return expectation(bug, runner).unaffected


def affected_runners(bug: Bug) -> tuple[str, ...]:
    """Return the runners that `bug` can affect. Raises as `expectation` does."""
    return tuple(name for name in RUNNERS if unaffected_reason(bug, name) is None)


def detected_by(bug: Bug, runner: str) -> str | None:
    """Return the property that must detect `bug` on `runner`, or None. Raises as `expectation`."""
    return expectation(bug, runner).detected_by
