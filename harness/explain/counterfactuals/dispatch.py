"""Whether a batch that no captured graph can run was replayed, and the lines that decided so."""

from collections.abc import Callable
from functools import partial
from operator import delitem
from types import FrameType
from typing import Any

from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.explain.tracing import callers_of, lines_of

CAN_RUN, REPLAY = "can_run", "replay"
"""Methods of a runner: one says whether a graph can run a batch, one replays it."""

Sources = tuple[SourceLine, ...]


def wrongly_replayed(recorded: RecordedForward, holds: Callable[[Run], bool]) -> Sources:
    """Return the lines that chose to replay a batch that no captured graph can run.

    The property holds once the engine has no runner for the batch, so that it runs eagerly. There
    are no lines where that is not so, and where a graph can run the batch.
    """
    runners, mode = recorded.engine.runners, recorded.planned.mode
    if recorded.unfit_replay is None:
        return ()
    kept = dict(runners)
    try:
        mended = holds(recorded.again(prepare=partial(delitem, runners, mode)))
    finally:
        runners.clear()
        runners.update(kept)
    if not mended:
        return ()
    deciding = _Deciding()
    recorded.again(seen=deciding)
    return deciding.lines


class _Deciding:
    """Takes note of the lines at which a runner said that it can run a batch.

    The last one to say so comes first. Then come the functions that it asked, and the callers.
    """

    def __init__(self) -> None:
        self.said: Sources = ()
        self.lines: Sources = ()

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Look at what returns while a runner is asked, and at what replays."""
        callers = list(callers_of(frame))
        names = [one.f_code.co_name for one in (frame, *callers)]
        if CAN_RUN in names and returned is not None and not names[0].startswith("<"):
            self.said = (lines_of(frame, line, "decided")[0], *self.said)
        if names[0] == REPLAY and not self.lines:
            self.lines = (*self.said, *lines_of(frame, line, REPLAY)[1:])
