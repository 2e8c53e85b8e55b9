"""Errors at the end of `regress` and `replay`, on the terminal."""

from collections.abc import Iterable, Sequence

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.errors import CannotRunError, headline, report_error, save_tracebacks

LACKING = f"{CannotRunError.__module__}.{CannotRunError.__qualname__}: "
"""The beginning of a traceback's last line if something was missing, which is not a defect."""


def summary_of(codes: Sequence[int]) -> tuple[str, int]:
    """Return the line about several replayed cases with these exit codes, and that of all."""
    found, none = codes.count(FINDING), codes.count(OK)
    rest = len(codes) - found - none
    line = f"{len(codes)} cases: {found} finding, {none} no finding, {rest} no verdict"
    return line, FINDING if found else CANNOT_RUN if rest else OK


def print_errors(errors: Iterable[str]) -> None:
    """Print to stderr in one sentence which errors left tasks without a verdict."""
    found = list(errors)
    lines = [headline(error) for error in found]
    if found and all(line.startswith(LACKING) for line in lines):
        report_error(lines[0].removeprefix(LACKING), CANNOT_RUN)
    elif found:
        report_error(save_tracebacks(found), CANNOT_RUN)
