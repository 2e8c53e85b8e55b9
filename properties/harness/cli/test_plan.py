"""The budget of a run over configurations, with a clock of the test's own."""

from dataclasses import dataclass

import pytest
from paritybit.harness.cli.watch.plan import LAST, LEAST, MOST, STARTS, Plan, configs_of
from paritybit.harness.errors import MalformedError, UnknownNameError

from paritybit.drive.adapters import adapter
from paritybit.drive.configs import Config
from paritybit.drive.job import Job

ROWS = tuple(Config(f"row {number}") for number in range(40))


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def served(plan: Plan, clock: Clock, *, starts: float, floor: float) -> float:
    """Let the workers of a plan serve rows, and return when the last one ended.

    A row takes `starts` seconds to start and `floor` to reach its floor, and ends at its time.
    """
    free = [clock.now] * plan.workers
    ended = clock.now
    while True:
        clock.now = min(free)
        turn = plan.next()
        if turn is None:
            return ended
        plan.start = starts
        reached = clock.now + starts + floor
        begun = clock.now + starts
        spent = begun + (turn.seconds if turn.after is None else turn.after)
        end = min(max(reached, spent), begun + turn.seconds, turn.until)
        end = max(begun, end)
        free[free.index(clock.now)] = end
        ended = max(ended, end)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("starts", [2.0, 12.0, 60.0])
@pytest.mark.parametrize("floor", [8.0, 30.0, 90.0, 400.0])
def test_a_run_takes_its_seconds_whatever_a_row_takes(
    workers: int, starts: float, floor: float
) -> None:
    clock = Clock()
    plan = Plan(ROWS, 300.0, workers, clock=clock)
    took = served(plan, clock, starts=starts, floor=floor) - 1000.0
    assert 300 - max(LAST + 18, STARTS * starts) <= took <= 345
    started = len(ROWS) - len(plan.left)
    row = starts + max(min(floor, MOST * 300), workers * 300 / len(ROWS))
    assert started >= int(workers * (300 - max(LAST, STARTS * starts)) / row)


def test_rows_of_the_array_end_at_a_floor_and_none_takes_all_of_the_time() -> None:
    clock = Clock()
    plan = Plan(ROWS, 300.0, clock=clock)
    turn = plan.next()
    assert turn is not None
    assert (turn.config, turn.until, turn.seconds, turn.after) == (ROWS[0], 1300.0, 30.0, 7.5)
    assert turn.job({}) == Job({}, until=1300.0, most=30.0, least=LEAST, after=7.5)
    clock.now = 1280.0
    assert (turn := plan.next()) is not None and turn.until == 1300.0
    clock.now = 1300.0 - LAST + 1
    assert plan.next() is None
    assert len(plan.left) == len(ROWS) - 2


def test_named_rows_share_the_time_and_have_no_floor() -> None:
    clock = Clock()
    plan = Plan(ROWS[:3], 90.0, clock=clock, named=True)
    first = plan.next()
    assert first is not None and (first.until, first.seconds) == (1090.0, 30.0)
    assert (first.after, first.job({})) == (None, Job({}, until=1090.0, most=30.0))
    clock.now = 1040.0  # It ended late.
    second = plan.next()
    assert second is not None and second.seconds == 25.0
    both = Plan(ROWS[:2], 60.0, 2, clock=clock, named=True)
    turns = [turn.seconds for turn in (both.next(), both.next()) if turn is not None]
    assert turns == [60.0, 60.0]


def test_rows_are_named_by_their_values_or_numbered() -> None:
    table = adapter("sglang").table.on("cpu")
    (config,) = configs_of(table, 0, ("page size 16+overlap",))
    assert (config.settings["page_size"], config.settings["overlap"]) == (16, True)
    assert [one.name for one in configs_of(table, 0, ("decode graphs", "decode graphs"))] == [
        "decode graphs"
    ]
    every = configs_of(table, 3)
    assert [config.name for config in every] == [config.name for config in table.array.rows(3)]
    with pytest.raises(UnknownNameError, match="unknown setting 'page size 17'"):
        configs_of(table, 0, ("overlap + page size 17",))
    with pytest.raises(MalformedError):
        configs_of(table, 0, ("page size 4 + page size 16",))
