"""Errors of an engine that serves generated requests."""

from paritybit.connectors.failures import judge, report
from paritybit.watch import journal
from paritybit.watch.observations import EngineError
from paritybit.watch.settings import active


class EngineFailedError(BaseException):
    """The engine raised an error. The engine's own handlers do not catch this BaseException."""


class StalledError(EngineFailedError):
    """Requests wait, but the engine runs none of them."""


def judge_failure(failed: BaseException) -> None:
    """Write a finding if an error that ended the engine is the engine's fault."""
    lines, settings = journal.of_process(), active()
    if lines is None or settings is None:
        return
    error = failed.__cause__ or failed
    if isinstance(error, StalledError):
        text = " ".join(str(error).split())
        forwards = lines.counts.get("forwards", 0)
        report(EngineError(forwards, "the engine stalls", text, None), lines, settings)
    else:
        judge(error, lines, settings)
