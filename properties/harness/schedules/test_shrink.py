"""Shrinking: what is left fails still, and neither a step nor a number of it can be spared."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from paritybit.harness.schedules.buckets import BUCKETS, TOKEN_BUCKETS
from paritybit.harness.schedules.generate import schedules
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
    Repeat,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from paritybit.harness.schedules.shrink import (
    Fails,
    cut,
    shrink,
    simpler_steps,
    simplify,
    with_requests,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS

MOST_PLAYED = 200
"""Schedules that shrinking one of 40 steps may play; what was caught has about as many."""

DRAWN = schedules(PRESETS["gpt_oss"], BUCKETS, TOKEN_BUCKETS, frozenset(Mode), Mode.TARGET_VERIFY)


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


def has_two_idles_of_one_pick(schedule: Schedule) -> bool:
    """Whether two idle steps name the same runner, which must be lowered together or not at all."""
    picks = [step.pick for step in schedule.steps if isinstance(step, Idle)]
    return len(picks) != len(set(picks))


def holds_a_high_row(schedule: Schedule) -> bool:
    """Whether a decode picks the fifth request, at a place that is not the first."""
    return any(isinstance(step, Decode) and 4 in step.picks[1:] for step in schedule.steps)


PLANTED: dict[str, Fails] = {
    rule.__name__: rule
    for rule in (
        wide_decode_of_a_long_prompt,
        verifies_what_was_retracted,
        has_two_idles_of_one_pick,
        holds_a_high_row,
    )
}
"""What a bug may need: a size, an order, two equal numbers, one pick among others."""

NOISE: tuple[Step, ...] = (
    Admit(7, 16),
    Idle(3),
    DraftExtend((0, 1, 2, 3, 4, 5, 6, 7)),
    Decode((5,)),
    Evict(1),
    Retract(6),
    Repeat(3),
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


def is_simpler(step: Step, original: Step, *, some: bool = False) -> bool:
    """Whether a step has no higher number than its original, and fewer, lower or the same picks.

    With `some`, picks may be any of the original, in its order.
    """
    if type(step) is not type(original):
        return False
    pairs = [(getattr(step, entry.name), getattr(original, entry.name)) for entry in fields(step)]
    return all(
        is_fewer(now, before, some=some) if isinstance(now, tuple) else 0 <= now <= before
        for now, before in pairs
    )


def is_fewer(picks: tuple[int, ...], original: tuple[int, ...], *, some: bool = False) -> bool:
    """Whether picks are the first of the original, or as many or fewer of the lowest.

    With `some`, they may be any of the original, in its order.
    """
    if original and not picks:
        return False
    if some and is_within(picks, original):
        return True
    lowest = tuple(range(len(picks)))
    return len(picks) <= len(original) and picks in {original[: len(picks)], lowest}


def comes_from(shorter: Schedule, original: Schedule, *, some: bool = False) -> bool:
    """Whether each step is, in order, a step of the original or a simpler one."""
    left = iter(original.steps)
    kept = all(any(is_simpler(step, other, some=some) for other in left) for step in shorter.steps)
    return kept and shorter.seed == original.seed


def all_simpler(step: Step) -> Iterator[Step]:
    """Yield the simpler steps of each field."""
    for entry in fields(step):
        yield from simpler_steps(step, entry.name)


def any_step() -> st.SearchStrategy[Step]:
    """Return a strategy of steps of every kind, their numbers larger than any drawn in a hunt."""
    number = st.integers(0, 300)
    picks = st.lists(number, min_size=1, max_size=12).map(tuple)
    return st.one_of(
        *(
            st.builds(
                kind,
                **{
                    entry.name: picks if entry.name == "picks" else number for entry in fields(kind)
                },
            )
            for kind in Step.__args__
        )
    )


@pytest.mark.parametrize("planted", PLANTED)
@given(schedule=DRAWN)
def test_what_is_left_still_fails_and_is_simpler(planted: str, schedule: Schedule) -> None:
    """Of a generated schedule, put behind one that fails for certain."""
    whole = Schedule(TALL.steps + schedule.steps, schedule.seed)
    assert PLANTED[planted](whole)
    for reduce in (shrink, cut, simplify):
        fails = Counted(PLANTED[planted])
        left = reduce(whole, fails)
        assert PLANTED[planted](left)
        for tried in (left, *fails.asked):
            assert comes_from(tried, whole, some=reduce is shrink)
            assert len(tried.steps) <= len(whole.steps)


@pytest.mark.parametrize("length", range(41))
def test_only_what_is_shorter_is_tried_in_cutting(length: int) -> None:
    """Of schedules of any length, in blocks that do not divide it, and of what the cuts leave."""
    whole = Schedule(TALL.steps[:length])
    for most in (0, 3, length // 2, length):
        wanted = whole.steps[:most:2]
        fails = Counted(holds_all(wanted))
        assert cut(whole, fails).steps == wanted
        assert all(len(tried.steps) < length for tried in fails.asked)
        assert all(is_within(tried.steps, whole.steps) for tried in fails.asked)


def holds_all(wanted: Sequence[Step]) -> Fails:
    """Return a predicate of schedules that hold some steps in their order."""
    return lambda schedule: is_within(wanted, schedule.steps)


def is_within(some: Sequence[object], all_of_them: Sequence[object]) -> bool:
    """Whether some steps or picks are all there, in their order."""
    left = iter(all_of_them)
    return all(one in left for one in some)


MINIMA: dict[str, tuple[Step, ...]] = {
    "wide_decode_of_a_long_prompt": (Admit(3, 0), Decode((0, 1))),
    "verifies_what_was_retracted": (Retract(0), Resume(0), Verify((0,), 2)),
    "has_two_idles_of_one_pick": (Idle(0), Idle(0)),
    "holds_a_high_row": (Decode((0, 1, 2, 3, 4)),),
}
"""What is left of TALL. Two equal numbers can only be lowered together, with all others."""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_failure_shrinks_to_its_minimum(planted: str) -> None:
    assert len(TALL.steps) == 40
    assert shrink(TALL, PLANTED[planted]) == Schedule(MINIMA[planted], TALL.seed)


@pytest.mark.parametrize("planted", PLANTED)
def test_no_step_and_no_number_of_what_is_left_can_be_spared(planted: str) -> None:
    fails = PLANTED[planted]
    left = shrink(TALL, fails)
    for place, step in enumerate(left.steps):
        before, after = left.steps[:place], left.steps[place + 1 :]
        assert not fails(Schedule(before + after, left.seed))
        for simpler in all_simpler(step):
            assert not fails(Schedule((*before, simpler, *after), left.seed))
    assert shrink(left, fails) == left


@pytest.mark.parametrize("planted", PLANTED)
def test_shrinking_plays_a_bounded_number_of_schedules(planted: str) -> None:
    """None of them longer than what was caught: a playing costs what its steps cost."""
    fails = Counted(PLANTED[planted])
    shrink(TALL, fails)
    assert 0 < len(fails.asked) < MOST_PLAYED
    assert all(len(tried.steps) <= len(TALL.steps) for tried in fails.asked)
    assert all(comes_from(tried, TALL, some=True) for tried in fails.asked)


def test_a_high_number_is_not_lowered_by_one_at_a_time() -> None:
    fails = Counted(lambda schedule: any(getattr(step, "prompt", 0) for step in schedule.steps))
    assert shrink(Schedule((Admit(200, 9),)), fails) == Schedule((Admit(1, 0),))
    assert len(fails.asked) < 10


def test_what_always_fails_shrinks_to_nothing_at_once() -> None:
    fails = Counted(lambda _: True)
    assert shrink(TALL, fails) == Schedule((), TALL.seed)
    assert fails.asked == [with_requests(TALL, 1), Schedule((), TALL.seed)]


def test_what_needs_every_step_keeps_every_step() -> None:
    """The dearest case: nothing can be dropped. Fields of no consequence become 0 all the same."""
    kinds = [type(step) for step in TALL.steps]
    fails = Counted(lambda schedule: [type(step) for step in schedule.steps] == kinds)
    left = shrink(TALL, fails)
    assert [type(step) for step in left.steps] == kinds
    for step in left.steps:
        assert all(getattr(step, entry.name) in {0, (0,)} for entry in fields(step))
    assert len(fails.asked) < 12 * len(TALL.steps)


@pytest.mark.parametrize(
    ("count", "left"),
    [
        (1, [Admit(3, 3), Prefill((), 2), Decode((0,)), Idle(3), Repeat(2)]),
        (
            3,
            [
                *(Admit(3, 3), Prefill((7, 1), 2), Prefill((), 2)),
                *(Verify((2, 1), 1), Decode((0, 2)), Finish(2), Idle(3), Repeat(2)),
            ],
        ),
    ],
)
def test_fewer_requests_are_neither_admitted_nor_picked(count: int, left: list[Step]) -> None:
    steps: tuple[Step, ...] = (
        *(Admit(3, 3), Prefill((7, 1, 4), 2), Prefill((5,), 2), Prefill((), 2)),
        *(Verify((2, 1), 1), Decode((4, 0, 3, 2)), Finish(2), Evict(3), Idle(3), Repeat(2)),
    )
    assert with_requests(Schedule(steps, 7), count) == Schedule(tuple(left), 7)


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
    assert len(counted.asked) < 15


@given(schedule=DRAWN)
def test_cutting_drops_steps_and_changes_none(schedule: Schedule) -> None:
    """What is left needs each of its steps."""
    whole = Schedule(schedule.steps + TALL.steps, schedule.seed)
    left = cut(whole, verifies_what_was_retracted)
    assert is_within(left.steps, whole.steps)
    assert [step.name for step in left.steps] == ["retract", "resume", "verify"]


def test_simplifying_keeps_every_step_in_its_place() -> None:
    left = simplify(TALL, lambda schedule: schedule.steps[0] == TALL.steps[0])
    assert left.steps[0] == TALL.steps[0]
    assert left.steps[1:] != TALL.steps[1:]
    assert [step.name for step in left.steps] == [step.name for step in TALL.steps]
    assert simplify(TALL, lambda schedule: schedule == TALL) == TALL


@given(step=any_step())
def test_a_simpler_step_differs_in_one_field_that_is_lower(step: Step) -> None:
    """Every one is of the same kind and of fewer or lower numbers, and none comes twice."""
    simpler = list(all_simpler(step))
    assert len(simpler) == len(set(simpler))
    for other in simpler:
        assert is_simpler(other, step)
        changed = [
            one.name for one in fields(step) if getattr(other, one.name) != getattr(step, one.name)
        ]
        assert len(changed) == 1
    for one in fields(step):
        value = getattr(step, one.name)
        under_test = [getattr(other, one.name) for other in simpler]
        assert all(under_test) if isinstance(value, tuple) else 0 in under_test or value == 0


@pytest.mark.parametrize(
    ("step", "simpler"),
    [
        (Idle(0), []),
        (Idle(1), [Idle(0)]),
        (Repeat(9), [Repeat(0), Repeat(1), Repeat(4), Repeat(8)]),
        (Admit(1, 2), [Admit(0, 2), Admit(1, 0), Admit(1, 1)]),
        (Decode((0,)), []),
        (Decode((3,)), [Decode((0,))]),
        (Decode((0, 1)), [Decode((0,))]),
        (Decode((5, 0)), [Decode((5,)), Decode((0, 1))]),
        (
            Verify((4, 5, 6, 7, 8, 9), 1),
            [
                *(Verify(picks, 1) for picks in ((4,), (4, 5), (4, 5, 6, 7), (4, 5, 6, 7, 8))),
                Verify((0, 1, 2, 3, 4, 5), 1),
                Verify((4, 5, 6, 7, 8, 9), 0),
            ],
        ),
    ],
    ids=str,
)
def test_the_simplest_step_is_tried_first(step: Step, simpler: list[Step]) -> None:
    assert list(all_simpler(step)) == simpler
