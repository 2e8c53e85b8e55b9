"""Whether a finding shows in a fresh process, or depends on state that no one declared."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paritybit.harness.campaigns.fresh import FreshPlaying, PlayFresh
from paritybit.harness.campaigns.hunt import HuntResult, ends, failed, hunted, whole
from paritybit.harness.checks.of_schedules.declared_state import ID
from paritybit.harness.checks.property import Violation
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.schema import STALLED
from paritybit.harness.schedules.schedule import Schedule
from paritybit.harness.schedules.shrink import shrink

DEPENDS = "the finding depends on undeclared state because a fresh process does not reproduce it"


@dataclass(frozen=True)
class Confirmed:
    """What of a hunt's finding shows in a fresh process.

    Where `undeclared` is None, `schedule` shows the finding there. Otherwise no fresh process
    does: `schedule` is then as it was drawn, unshrunk, `history` the schedules to be played before
    it in one process, `seen` what it violated in the hunt, and `undeclared` says all this.
    """

    schedule: Schedule
    history: tuple[Schedule, ...] = ()
    seen: tuple[Violation, ...] = ()
    undeclared: Violation | None = None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What was seen of a finding that a fresh process does not show."""
        return self.seen if self.undeclared is None else (*self.seen, self.undeclared)


def confirmed(
    trial: TrialConfig,
    hunt_result: HuntResult,
    target: str | None,
    watched: Iterable[str],
    play: PlayFresh,
) -> Confirmed:
    """Return a schedule that shows the target in a fresh process; None is any of `watched`.

    That is the shrunk one, else the drawn one, shrunk in fresh processes. A process that has
    captured only what its schedules need and does not show it does not decide: one that has
    captured everything does. A playing that does not show it while gates opened by themselves is
    repeated once; the hunt's events count these gates. Raises PlayingFailedError for a playing that
    an error of ours ended.
    """
    until, properties = ends(target), hunted(target, watched)
    drawn, shrunk = hunt_result.drawn, hunt_result.schedule
    assert drawn is not None and shrunk is not None

    def is_shown_by(playing: FreshPlaying) -> bool:
        outcome = whole(play(playing))
        if outcome.stalled:
            hunt_result.events[STALLED] += outcome.stalled
            if not failed(outcome, target):
                outcome = whole(play(playing))
        return failed(outcome, target)

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
    """Yield the last one, two, four … of some schedules, at last all of them."""
    count = 1
    while count < len(schedules):
        yield schedules[-count:]
        count *= 2
    if schedules:
        yield schedules


def told(hunt_result: HuntResult, history: tuple[Schedule, ...] | None) -> Violation:
    """Return the violation of a finding that shows after `history` alone, if even then."""
    count = len(hunt_result.before) if history is None else len(history)
    if history is None:
        ending = f"it did not recur even after the {count} schedules that were played before it"
    else:
        ending = f"it recurs after {count} earlier schedule{'s' * (count > 1)}"
    place = max((violation.step for violation in hunt_result.seen), default=0)
    where = {"history": count, "shows_after_history": history is not None}
    return Violation(ID, place, f"{DEPENDS}; {ending}", where)
