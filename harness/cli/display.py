"""Errors at the end of `regress` and `replay`, on the terminal."""

from collections.abc import Iterable

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.errors import CannotRunError, headline, report_error, save_tracebacks

LACKING = f"{CannotRunError.__module__}.{CannotRunError.__qualname__}: "
"""The beginning of a traceback's last line if something was missing, which is not a defect."""


def summary_of(cases: int, wrong: int, undecided: int) -> tuple[str, int]:
    """Return the line about several replayed cases, and the exit code."""
    line = (
        f"{cases} cases: {cases - wrong - undecided} reproduced, {wrong} not reproduced, "
        f"{undecided} without a verdict"
    )
    return line, FINDING if wrong else CANNOT_RUN if undecided else OK


def print_errors(errors: Iterable[str]) -> None:
    """Print to stderr in one sentence which errors left tasks without a verdict."""
    found = list(errors)
    lines = [headline(error) for error in found]
    if found and all(line.startswith(LACKING) for line in lines):
        report_error(lines[0].removeprefix(LACKING), CANNOT_RUN)
    elif found:
        report_error(save_tracebacks(found), CANNOT_RUN)
