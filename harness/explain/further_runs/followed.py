"""A schedule that is played up to a step, with what the lines of that step change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from paritybit.harness.explain.tracing import LastChange, following
from paritybit.harness.lockstep.observation import Sample
from paritybit.harness.lockstep.pair import Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Schedule

Checkpoint = tuple[int, bool]
"""The number of a step, and whether it is over. If not, its forward has not run yet."""


FollowedT = TypeVar("FollowedT", bound="Watched")


def _without_frame(say: Callable[[], Any], _frame: FrameType | None) -> Any:
    return say()


class Watched(Recorder):
    """Follows the lines of a step, and the changes that they make to the results of `says`.

    Changes made by the eager forward are not attributed to a line.
    """

    def __init__(self, *says: Callable[[], Any]) -> None:
        self.changes = [LastChange(partial(_without_frame, say), "changed") for say in says]

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Compare again after a line."""
        for one in self.changes:
            one(frame, line, returned)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Follow the eager forward."""
        yield
        for one in self.changes:
            said = one.say(None)
            if said != one.said:
                one.said, one.lines = said, ()


class Planned(Recorder):
    """Calls `at` when a step is planned."""

    def __init__(self, at: Callable[[], None]) -> None:
        self.at = at

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Follow a step that is planned."""
        self.at()


def watch_step(
    pair: Pair, schedule: Schedule, last: int, make: Callable[[], FollowedT]
) -> FollowedT:
    """Play the steps of a schedule up to number `last`, and follow the lines of that step."""
    pair.begin(schedule)
    for number, (place, step, upcoming) in enumerate(schedule.ahead()):
        if number == last:
            watched = make()
            with following(watched):
                pair.step(step, place, upcoming=upcoming, recorder=watched)
            return watched
        pair.step(step, place, upcoming=upcoming)
    raise ValueError(f"the schedule has no step number {last}")


def play(
    pair: Pair, schedule: Schedule, last: int, at: Callable[[Checkpoint], None]
) -> list[Sample]:
    """Play as many steps, and call `at` at each checkpoint. Return the samples."""
    samples = list[Sample]()
    pair.begin(schedule)
    for number, (place, step, upcoming) in enumerate(schedule.ahead()):
        recorder = Planned(partial(at, (number, False)))
        observation = pair.step(step, place, upcoming=upcoming, sampling=True, recorder=recorder)
        samples += observation.samples if observation is not None else ()
        if number == last:
            break
        at((number, True))
    return samples
