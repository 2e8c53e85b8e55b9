"""no_crash: detects steps and captures of the engine that raise an error.

No property judges such a step, because it computed nothing that could be wrong.
`SchedulePlayer.play` reports the error as a violation.
"""

from typing import Any

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, raised_at

EXTRA_RUN, RAISED = "extra_run", "raised"
"""Keys of a violation's `where`: the property whose extra run failed, and the lines that raised."""


def describe_error(error: SubjectFailedError) -> Description:
    """Quote the error, and list the lines that raised it, innermost first."""
    lines = raised_at(error.__cause__ or error)
    where: dict[str, Any] = {} if error.extra_run is None else {EXTRA_RUN: error.extra_run}
    if lines:
        where[RAISED] = [list(line) for line in lines]
    return f"the step failed: {error}", where


NO_CRASH = Property(
    id="no_crash",
    statement="no step and no capture of the engine raises an error",
    diverges=True,
)
