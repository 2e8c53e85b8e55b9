"""Checks whether a finding reproduces in a fresh process or depends on undeclared state."""

from collections.abc import Iterable
from dataclasses import dataclass

from paritybit.harness.campaigns.fresh import FreshPlaying, PlayFresh
from paritybit.harness.campaigns.hunt import HuntResult, ends, failed, without_error
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import DECLARED_STATE
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Schedule

DEPENDS = "the finding depends on undeclared state because a fresh process does not reproduce it"


@dataclass(frozen=True)
class Confirmed:
    """A hunt's finding after fresh processes tried to reproduce it.

    If `undeclared` is None, `schedule` reproduces the finding. Otherwise no fresh process does:

    - `schedule`: the schedule as it was drawn, not shrunk.
    - `history`: the schedules that the hunt's process played before it.
    - `undeclared`: a violation that states the dependence.
    """

    schedule: Schedule
    history: tuple[Schedule, ...] = ()
    undeclared: Violation | None = None


def confirmed(
    trial: TrialConfig,
    hunt_result: HuntResult,
    target: str | None,
    properties: Iterable[str],
    play: PlayFresh,
) -> Confirmed:
    """Find a schedule that violates the target in a fresh process. None means any property.

    The first candidate is the shrunk schedule, the second the drawn one. Raises PlayingFailedError
    for an internal error.
    """
    drawn, shrunk, before = hunt_result.drawn, hunt_result.schedule, hunt_result.before
    assert drawn is not None and shrunk is not None

    def shows(*schedules: Schedule) -> bool:
        playing = FreshPlaying(trial, frozenset(properties), ends(target), schedules)
        return failed(without_error(play(playing)), target)

    for schedule in (shrunk, drawn):
        if shows(schedule):
            return Confirmed(schedule)
    recurs, count = bool(before) and shows(*before, drawn), len(before)
    ending = f"it recurs after {count} earlier schedule{'s' * (count > 1)}"
    if not recurs:
        ending = f"it did not recur even after the {count} schedules that were played before it"
    place = max((violation.step for violation in hunt_result.seen), default=0)
    where = {"history": count, "shows_after_history": recurs}
    return Confirmed(drawn, before, Violation(DECLARED_STATE, place, f"{DEPENDS}; {ending}", where))
