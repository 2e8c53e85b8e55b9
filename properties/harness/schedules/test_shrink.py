"""Shrinking: what is left fails still, and neither a step nor a number of it can be spared."""

from collections.abc import Callable

import pytest
from msgspec.structs import fields
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Prefill,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from paritybit.harness.schedules.shrink import Fails, shrink, simpler_steps, with_requests

MOST_PLAYED = 200
"""Schedules that shrinking one of 40 steps may play; what was caught has about as many."""


def wide_decode_of_a_long_prompt(schedule: Schedule) -> bool:
    """Whether two requests or more are decoded after an admission of three tokens or more."""
    long = False
    for step in schedule.steps:
        long = long or (isinstance(step, Admit) and step.prompt >= 3)
        if long and isinstance(step, Decode) and len(step.picks) >= 2:
            return True
    return False


def verifies_what_was_retracted(schedule: Schedule) -> bool:
    """Whether a retraction, its resumption and a verification that accepts follow in order."""
    wanted: list[Callable[[Step], bool]] = [
        lambda step: isinstance(step, Retract),
        lambda step: isinstance(step, Resume),
        lambda step: isinstance(step, Verify) and step.accept >= 2,
    ]
    for step in schedule.steps:
        if wanted and wanted[0](step):
            wanted.pop(0)
    return not wanted


def holds_a_high_row(schedule: Schedule) -> bool:
    """Whether a decode picks the fifth request, at a place that is not the first."""
    return any(isinstance(step, Decode) and 4 in step.picks[1:] for step in schedule.steps)


MINIMA: dict[Fails, tuple[Step, ...]] = {
    wide_decode_of_a_long_prompt: (Admit(3, 0), Decode((0, 1))),
    verifies_what_was_retracted: (Retract(0), Resume(0), Verify((0,), 2)),
    holds_a_high_row: (Decode((0, 1, 2, 3, 4)),),
}
"""What a bug may need, and what is left of TALL: a size, an order, equal numbers, one pick."""

NOISE: tuple[Step, ...] = (
    Admit(7, 16),
    Idle(3),
    DraftExtend((0, 1, 2, 3, 4, 5, 6, 7)),
    Decode((5,)),
    Evict(1),
    Retract(6),
    Idle(1),
    Extend(2, 9),
    Draft((0, 1, 2)),
    Finish(4),
    Idle(3),
    Resume(6),
    Verify((3, 1), 3),
)

TALL = Schedule((NOISE * 3 + (Decode((7, 3, 5, 1, 4, 0)),))[:40], seed=5)
"""Forty steps in which every planted predicate holds."""


class Counted:
    """A predicate that keeps what it was asked about."""

    def __init__(self, fails: Fails) -> None:
        self.fails = fails
        self.asked: list[Schedule] = []

    def __call__(self, schedule: Schedule) -> bool:
        """Return what the predicate says."""
        self.asked.append(schedule)
        return self.fails(schedule)


@pytest.mark.parametrize("fails", MINIMA, ids=lambda rule: rule.__name__)
def test_a_planted_failure_shrinks_to_its_minimum_in_few_playings(fails: Fails) -> None:
    """No step and no number of it can be spared, and nothing that is tried is longer."""
    counted = Counted(fails)
    left = shrink(TALL, counted)
    assert left == Schedule(MINIMA[fails], TALL.seed)
    assert 0 < len(counted.asked) < MOST_PLAYED
    assert all(len(tried.steps) <= len(TALL.steps) for tried in counted.asked)
    for place, step in enumerate(left.steps):
        before, after = left.steps[:place], left.steps[place + 1 :]
        assert not fails(Schedule(before + after, left.seed))
        for entry in fields(step):
            for simpler in simpler_steps(step, entry.name):
                assert not fails(Schedule((*before, simpler, *after), left.seed))


def test_fewer_requests_are_neither_admitted_nor_picked() -> None:
    steps: tuple[Step, ...] = (
        *(Admit(3, 3), Prefill((7, 1, 4), 2), Prefill((5,), 2), Prefill((), 2)),
        *(Verify((2, 1), 1), Decode((4, 0, 3, 2)), Finish(2), Evict(3), Idle(3)),
    )
    left = Admit(3, 3), Prefill((), 2), Decode((0,)), Idle(3)
    assert with_requests(Schedule(steps, 7), 1) == Schedule(left, 7)


def test_two_rows_of_many_are_left_after_few_playings() -> None:
    """A violation that needs as many admissions as rows, which neither cut alone would keep."""

    def fails(schedule: Schedule) -> bool:
        admitted = sum(isinstance(step, Admit) for step in schedule.steps)
        decodes = [step.picks for step in schedule.steps if isinstance(step, Decode)]
        return any(len(set(picks)) == admitted >= 2 for picks in decodes)

    rows = tuple(range(8))
    counted = Counted(fails)
    whole = Schedule((*[Admit(9, 9)] * 8, Decode(rows), Decode(rows[1:])))
    assert shrink(whole, counted) == Schedule((Admit(0, 0), Admit(0, 0), Decode((0, 1))))
    assert len(counted.asked) <= 15
