"""Values that a repeated capture, while requests hold KV, had instead of padding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from paritybit.harness.explain.counterfactuals.judge import Judge, holds
from paritybit.harness.explain.facts import Cause, GivenValue, SourceLine
from paritybit.harness.explain.origins.source_lines import line_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.tracing import LastChange, following
from paritybit.harness.lockstep.bits import unequal
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Recapture, Schedule
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

Run = Callable[[], object]
"""Runs a step."""

CAPTURE = "capture_all"
"""The method of a runner that captures its graphs."""


def recaptured_cause(recorded: RecordedForward, schedule: Schedule, judge: Judge) -> Cause | None:
    """Blame a static input that did not hold padding when the graphs were captured again.

    The KV before the forward then differs from the eager world's. With the eager world's KV the
    property holds, and with padding in that input the KV is the eager world's.
    """
    if not any(isinstance(step, Recapture) for _, step in schedule.flat()):
        return None
    stored = recorded.eager_before, recorded.graph_before
    different = unequal(*stored) & recorded.pair.compared
    if not different.any():
        return None
    right = recorded.graph_before.where(~different, recorded.eager_before)
    if not holds(recorded, judge, replace(recorded, graph_before=right).again()):
        return None
    played = _Played(recorded, schedule)
    if played.agrees_with(()):  # Then no input is needed to make the worlds agree.
        return None
    every = tuple(played.runner.inputs.buffers)
    wrong = next((names for names in [*zip(every), every] if played.agrees_with(names)), ())
    if not wrong:
        return None
    name, place, held, padding = played.wrong(wrong)
    values = str(held), str(padding)
    given = GivenValue(f"{name}[{place}]", *values, stale=True, left_by=None, how=None)
    return Cause("inputs", given=given, made=played.written_at(wrong))


class _Played:
    """Plays a schedule up to a forward, and calls back when its graphs are captured again."""

    def __init__(self, recorded: RecordedForward, schedule: Schedule) -> None:
        self.pair, self.schedule = recorded.pair, schedule
        self.forward, self.step = recorded.forward_id.forward, recorded.forward_id.step
        self.runner: GraphRunner = recorded.engine.engine.under_test
        self.held: dict[str, Tensor] = {}
        self.capturing = False

    def agrees_with(self, names: Sequence[str]) -> bool:
        """Whether both worlds hold the same KV if these inputs hold padding in a capture."""

        def pad() -> None:
            self.held = {name: one.clone() for name, one in self.runner.inputs.buffers.items()}
            for name, value in self._padding(names):
                self.runner.inputs.buffers[name].fill_(value)

        if not self._play(pad):
            return False
        stored = self.pair.eager_pools.storage, self.pair.graph_pools.storage
        return not (unequal(*stored) & self.pair.compared).any()

    def wrong(self, names: Sequence[str]) -> tuple[str, int, float, int]:
        """Return the first element of these inputs that was not padding, and both values."""
        return next(
            (name, place, held, padding)
            for name, padding in self._padding(names)
            for place, held in enumerate(self.held[name].flatten().tolist())
            if held != padding
        )

    def written_at(self, names: Sequence[str]) -> tuple[SourceLine, ...]:
        """Return the lines that write the other inputs, or all, before a repeated capture."""
        buffers, held = self.runner.inputs.buffers, self.held
        watched = [name for name in buffers if name not in names] or [*buffers]
        change: LastChange | None = None
        said: list[object] = []

        def held_before() -> list[object]:
            nonlocal said
            if not self.capturing:  # Nothing is read into Python during a capture.
                said = [buffers[name].tolist() for name in watched]
            return said

        def follow(run: Run) -> None:
            nonlocal change
            for name in watched:  # The values written then differ from the previous ones.
                buffers[name].fill_(int(held[name].flatten()[0] == 0))
            change = LastChange(lambda _: held_before(), "written")
            with following(change):
                run()

        self._play(lambda: None, follow)
        again = type(self.runner).capture_again
        lines = () if change is None else change.lines
        return lines or (line_of(f"captured in {again.__qualname__}", again),)

    def _padding(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        yield from ((name, self.runner.inputs.rows[name].value) for name in names)

    def _play(
        self, prepare: Callable[[], None], recapture: Callable[[Run], object] = lambda run: run()
    ) -> bool:
        """Play, and call `prepare` before each repeated capture, which `recapture` runs.

        Returns whether the subject succeeded.
        """
        capture, forwards = getattr(self.runner, CAPTURE), 0

        def prepared() -> None:
            prepare()
            self.capturing = True
            capture()
            self.capturing = False

        self.pair.begin(self.schedule)
        setattr(self.runner, CAPTURE, prepared)
        try:
            for place, step, upcoming in self.schedule.ahead():
                if (place, forwards) == (self.step, self.forward):
                    break
                run = partial(self.pair.step, step, place, upcoming=upcoming)
                if isinstance(step, Recapture):
                    recapture(run)
                else:
                    forwards += run() is not None
        except SubjectFailedError:
            return False
        finally:
            vars(self.runner).pop(CAPTURE, None)
        return True
