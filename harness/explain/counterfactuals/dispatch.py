"""Decisions of a runner about a batch: its path, graph or eager, and other yes-or-no methods.

The lines of a decision are named if the opposite decision makes the violated property hold.
"""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from paritybit.harness.explain.origins.source_lines import line_of
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.explain.tracing import Sources, callers_of, lines_of
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.subjects.protocol import Forward, Overrides
from paritybit.subjects.runners.base import GraphRunner

CAN_RUN = "can_run"
"""The method of a runner that says whether a captured graph can run a batch."""

FORWARD = "forward"
"""The method of an engine that chooses a path."""

REPLAY = "replay"
"""The method that replays a batch."""


def path_chosen_at(recorded: RecordedForward, holds: Callable[[Run], bool]) -> Sources:
    """Return the lines that chose a path that the batch must not take.

    The property holds if the runner gives the opposite answer to whether a graph can run the batch.
    Returns no lines if that is not so, and if the batch took the right path.
    """
    runner = recorded.engine.runners.get(recorded.planned.mode)
    if runner is None:
        return ()
    off_path = recorded.off_path
    if recorded.run.failed is not None:
        asked = _Asked(runner)
        recorded.again(seen=asked)
        off_path = asked.replayed != (recorded.runner is not None)
    if not off_path:
        return ()
    return _said_at(recorded, runner, CAN_RUN, holds) or _not_asked_at(recorded, runner, holds)


def _not_asked_at(
    recorded: RecordedForward, runner: GraphRunner, holds: Callable[[Run], bool]
) -> Sources:
    """Return the function that chooses the path, if the property holds once the runner replays."""
    engine = recorded.engine.engine

    def forward(batch: ForwardBatch | None, idle: Mode, overrides: Overrides) -> Forward:
        replay = runner.replay(batch, overrides)
        return Forward(replay.live_output, replay, replay.keys)

    if recorded.runner is None:
        return ()
    try:
        fixed = holds(recorded.again(prepare=lambda: setattr(engine, FORWARD, forward)))
    finally:
        vars(engine).pop(FORWARD, None)
    chosen_in = type(engine).forward
    return (line_of(f"the path is chosen in {chosen_in.__qualname__}", chosen_in),) if fixed else ()


def decided_at(recorded: RecordedForward, holds: Callable[[Run], bool]) -> Sources:
    """Return the lines at which the runner makes a wrong decision about a batch.

    The property holds if one yes-or-no method of the runner returns the opposite. Methods that
    choose the path are excluded, because static inputs that nothing reads cannot be wrong.
    """
    runner = recorded.runner
    if runner is None:
        return ()
    asked = _Asked(runner)
    recorded.again(seen=asked)
    for name in asked.names:
        lines = _said_at(recorded, runner, name, holds)
        if lines:
            return lines
    return ()


def _said_at(
    recorded: RecordedForward, runner: GraphRunner, name: str, holds: Callable[[Run], bool]
) -> Sources:
    """Return the lines at which a method says yes or no, if the opposite makes the property hold.

    The line that calls the method comes second, if the opposite answer is needed only there.
    """
    contradicted = _Contradicted(recorded, runner, name)
    if not holds(contradicted.run()):
        return ()
    choosing = _Choosing(name)
    recorded.again(seen=choosing)
    lines, sites = choosing.lines, dict(contradicted.asked)
    if len(sites) > 1:
        asking = (one for site, one in sites.items() if holds(contradicted.run(site)))
        lines = (*lines[:1], *next(asking, ())[:1], *lines[1:])
    return tuple(dict.fromkeys(lines))


Site = tuple[CodeType, int]
"""A line that calls a method."""


class _Contradicted:
    """Runs a forward with one method of its runner returning the opposite.

    `asked` has the lines that call the method, with their callers.
    """

    def __init__(self, recorded: RecordedForward, runner: GraphRunner, name: str) -> None:
        self.recorded, self.runner, self.name = recorded, runner, name
        self.asked: dict[Site, Sources] = {}

    def run(self, at: Site | None = None) -> Run:
        """Run the forward. With `at`, the method returns the opposite only at that line."""
        says = getattr(self.runner, self.name)

        def contradict(*given: Any, **named: Any) -> bool:
            frame = sys._getframe(1)
            site = frame.f_code, frame.f_lineno
            self.asked.setdefault(site, lines_of(frame, frame.f_lineno, "decided"))
            said = bool(says(*given, **named))
            return not said if at in (None, site) else said

        def prepare() -> None:
            setattr(self.runner, self.name, contradict)

        try:
            return self.recorded.again(prepare=prepare)
        finally:
            vars(self.runner).pop(self.name, None)


class _Asked:
    """Records the methods of a runner that return yes or no in a forward.

    `replayed` says whether the runner is called to replay.
    """

    def __init__(self, runner: GraphRunner) -> None:
        self.runner = runner
        self.names: dict[str, None] = {}
        self.replayed = False

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Examine a return."""
        if frame.f_locals.get("self") is not self.runner:
            return
        name = frame.f_code.co_name
        self.replayed = self.replayed or name == REPLAY
        says = isinstance(returned, bool) and callable(getattr(type(self.runner), name, None))
        if says and name != CAN_RUN:
            self.names[name] = None


class _Choosing:
    """Records the lines at which a method says yes or no.

    The last function that returned a value comes first. Then come the functions that it called, and
    the functions that called it.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        self.said: Sources = ()
        self.lines: Sources = ()

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Examine a return while the method runs, and the line that called it."""
        asked = [one.f_code.co_name for one in (frame, *callers_of(frame))]
        if self.method not in asked:
            if self.said and not self.lines:
                self.lines = (*self.said, *lines_of(frame, line, "decided"))
        elif returned is not None and not asked[0].startswith("<"):
            self.said = (lines_of(frame, line, "decided")[0], *self.said)
