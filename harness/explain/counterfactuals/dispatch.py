"""Whether a batch took the wrong path, graph or eager, and the lines that chose it."""

from collections.abc import Callable
from types import FrameType
from typing import Any

from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.explain.tracing import callers_of, lines_of

CAN_RUN = "can_run"
"""The method of a runner that says whether a captured graph can run a batch."""

Sources = tuple[SourceLine, ...]


def path_chosen_at(recorded: RecordedForward, holds: Callable[[Run], bool]) -> Sources:
    """Return the lines that chose a path that the batch must not take.

    The property holds once the runner says the opposite of whether a graph can run the batch. There
    are no lines where that is not so, and where the batch took the path that it must.
    """
    runner = recorded.engine.runners.get(recorded.planned.mode)
    if runner is None or not recorded.off_path:
        return ()
    fits = recorded.runner is not None
    try:
        mended = holds(recorded.again(prepare=lambda: setattr(runner, CAN_RUN, lambda _: fits)))
    finally:
        vars(runner).pop(CAN_RUN, None)
    if not mended:
        return ()
    choosing = _Choosing()
    recorded.again(seen=choosing)
    return choosing.lines


class _Choosing:
    """Takes note of the lines at which a runner says whether a graph can run a batch.

    The last function to say so comes first. Then come those that it asked, and those that asked it.
    """

    def __init__(self) -> None:
        self.said: Sources = ()
        self.lines: Sources = ()

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Look at what returns while a runner is asked, and at the line that asked."""
        asked = [one.f_code.co_name for one in (frame, *callers_of(frame))]
        if CAN_RUN not in asked:
            if self.said and not self.lines:
                self.lines = (*self.said, *lines_of(frame, line, "decided"))
        elif returned is not None and not asked[0].startswith("<"):
            self.said = (lines_of(frame, line, "decided")[0], *self.said)
