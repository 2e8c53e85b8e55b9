"""declared_state: detects Python state that a reset does not restore."""

from paritybit.harness.checks.property import Playing, Property, Violation
from paritybit.harness.explain.counterfactuals.objects import Kept
from paritybit.harness.explain.counterfactuals.setters import identity
from paritybit.harness.explain.facts import Cause, HeldState, Situation
from paritybit.harness.explain.origins.source_lines import line_of
from paritybit.harness.explain.tracing import LastChange, following
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.captured import CapturedEngine

ID = "declared_state"

RESET = (line_of("the engine is reset", CapturedEngine.reset),)
"""The line to look at where no line of the engine sets what a reset does not restore."""


def at_end(playing: Playing) -> list[Violation]:
    """Report how the engines' state after a reset differs from that after capture."""
    if not playing.undeclared:
        return []
    first, *others = playing.undeclared
    more = f"; other differences: {len(others)}" if others else ""
    message = (
        f"{first.name} was {first.captured} after the capture and is {first.now} after a "
        f"reset{more}"
    )
    where = {"path": first.path, "captured": first.captured, "now": first.now}
    return [Violation(ID, playing.place, message, where)]


def cause(pair: Pair, schedule: Schedule, step: int) -> tuple[Situation, Cause] | None:
    """Explain remaining state: the path to it from the engine, and the lines that set it last."""
    engine = pair.subject
    pair.begin(schedule)
    captured = Kept(engine)
    _played(pair, schedule, step)
    engine.reset()
    now = Kept(engine)
    attribute = next(captured.changed_by(now), None)
    if attribute is None:
        return _of_tensors(pair, step)
    captured.restore()
    pair.begin(schedule)
    watched = LastChange(lambda _: identity(attribute), "set")
    with following(watched):
        _played(pair, schedule, step)
    change = attribute.change
    held = HeldState(change.path, change.captured, change.now)
    return Situation(step, None), Cause("Python state", state=held, made=watched.lines or RESET)


def _of_tensors(pair: Pair, step: int) -> tuple[Situation, Cause] | None:
    """Explain tensors that a reset does not restore: no line changes them but replays."""
    change = next(iter(pair.captures.undeclared()), None)
    if change is None:
        return None
    held = HeldState(change.path, change.captured, change.now)
    return Situation(step, None), Cause("Python state", state=held, made=RESET)


def _played(pair: Pair, schedule: Schedule, last: int) -> None:
    """Play a schedule up to a step."""
    for place, step, upcoming in schedule.ahead(last):
        pair.step(step, place, upcoming=upcoming)


DECLARED_STATE = Property(
    id=ID,
    statement=(
        "a finding also appears in a fresh process, and a reset engine has the same "
        "Python state as a freshly captured one"
    ),
    at_end=at_end,
    cause_in_play=cause,
    every_step=False,
    after_reset=True,
)
