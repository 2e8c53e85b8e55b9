"""Checks whether a finding reproduces in a fresh process or depends on undeclared state."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paritybit.harness.campaigns.fresh import FreshPlaying, PlayFresh
from paritybit.harness.campaigns.hunt import HuntResult, ends, failed, hunted, without_error
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import DECLARED_STATE
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Schedule
from paritybit.harness.schedules.shrink import shrink

DEPENDS = "the finding depends on undeclared state because a fresh process does not reproduce it"


@dataclass(frozen=True)
class Confirmed:
    """A hunt's finding after fresh processes tried to reproduce it.

    If `undeclared` is None, `schedule` reproduces the finding. Otherwise no fresh process does:

    - `schedule`: the schedule as it was drawn, not shrunk.
    - `history`: the schedules to play before it in the same process.
    - `seen`: the violations in the hunt.
    - `undeclared`: a violation that states the dependence.
    """

    schedule: Schedule
    history: tuple[Schedule, ...] = ()
    seen: tuple[Violation, ...] = ()
    undeclared: Violation | None = None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations of a finding that a fresh process does not reproduce."""
        return self.seen if self.undeclared is None else (*self.seen, self.undeclared)


def confirmed(
    trial: TrialConfig,
    hunt_result: HuntResult,
    target: str | None,
    watched: Iterable[str],
    play: PlayFresh,
) -> Confirmed:
    """Find a schedule that violates the target in a fresh process. None means any of `watched`.

    The first candidate is the shrunk schedule, the second the drawn one, which is then shrunk in
    fresh processes. If a process that captured only what the schedules need does not reproduce the
    finding, one that captured everything decides. Raises PlayingFailedError for an internal error.
    """
    until, properties = ends(target), hunted(target, watched)
    drawn, shrunk = hunt_result.drawn, hunt_result.schedule
    assert drawn is not None and shrunk is not None

    def is_shown_by(playing: FreshPlaying) -> bool:
        return failed(without_error(play(playing)), target)

    def shows(schedule: Schedule, history: tuple[Schedule, ...] = ()) -> bool:
        playing = FreshPlaying(trial, properties, until, (*history, schedule))
        if is_shown_by(playing):
            return True
        return not trial.captures_all and is_shown_by(replace(playing, captures_all=True))

    if shows(shrunk):
        return Confirmed(shrunk)
    if shows(drawn):
        return Confirmed(shrink(drawn, shows))
    before = hunt_result.before
    history = next((latest for latest in ever_more(before) if shows(drawn, latest)), None)
    return Confirmed(
        drawn, before if history is None else history, hunt_result.seen, told(hunt_result, history)
    )


def ever_more(schedules: tuple[Schedule, ...]) -> Iterator[tuple[Schedule, ...]]:
    """Yield the last 1, 2, 4, … schedules, and finally all of them."""
    count = 1
    while count < len(schedules):
        yield schedules[-count:]
        count *= 2
    if schedules:
        yield schedules


def told(hunt_result: HuntResult, history: tuple[Schedule, ...] | None) -> Violation:
    """Return the violation for a finding that only recurs after `history`, or not at all."""
    count = len(hunt_result.before) if history is None else len(history)
    if history is None:
        ending = f"it did not recur even after the {count} schedules that were played before it"
    else:
        ending = f"it recurs after {count} earlier schedule{'s' * (count > 1)}"
    place = max((violation.step for violation in hunt_result.seen), default=0)
    where = {"history": count, "shows_after_history": history is not None}
    return Violation(DECLARED_STATE, place, f"{DEPENDS}; {ending}", where)
