"""The time left of a trial or a soak, and the lines that say so."""

import io

import pytest
from paritybit.harness.cli.engines.display import Telling, duration
from paritybit.harness.engines.progress import STARTING, Played, TimeLeft
from paritybit.harness.engines.worker import LegAnswer
from rich.console import Console

LEGS = ("decode gpt_oss", "cpu_graph mimo")


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def played(done: int, leg: str = LEGS[0], planned: int = 4, unit: str = "schedules") -> Played:
    """Return that a leg has played something."""
    return Played(leg, done, planned, unit, done, 9 * done, 5 * done, 3 * done, ())


def test_the_time_left_follows_from_the_share_that_is_done() -> None:
    clock = Clock()
    left = TimeLeft(LEGS, clock)
    assert left.seconds is None
    left.play(played(1))
    clock.now += 30
    done = STARTING + (1 - STARTING) / 4
    assert left.seconds == pytest.approx(30 * (2 - done) / done)
    left.end(LEGS[0])
    assert left.seconds == pytest.approx(30)
    left.play(played(2))
    assert left.seconds == pytest.approx(30), "what is told late takes nothing back"
    left.end(LEGS[1])
    assert left.seconds is None


def test_a_leg_that_plays_more_than_was_planned_is_done_and_no_more() -> None:
    clock = Clock()
    left = TimeLeft(LEGS, clock)
    clock.now += 10
    left.play(played(170, planned=150, unit="steps"))
    assert left.seconds == pytest.approx(10)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "about 10 s"),
        (44.0, "about 40 s"),
        (89.0, "about 90 s"),
        (91.0, "about 2 min"),
        (3600.0, "about 60 min"),
    ],
)
def test_an_estimate_is_no_more_exact_than_it_is(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_log_has_one_line_for_each_schedule_and_each_leg_and_no_control_character() -> None:
    clock, written = Clock(), io.StringIO()
    telling = Telling(Console(file=written, width=40), clock)
    telling.begin(LEGS)
    clock.now += 20
    telling.hear(played(2))
    clock.now += 20
    telling.on_leg(LegAnswer(LEGS[0], "decode", "gpt_oss", undecided="[a part] has moved"))
    telling.hear(played(60, LEGS[1], planned=150, unit="steps"))
    telling.on_leg(LegAnswer(LEGS[1], "cpu_graph", "mimo"))
    assert written.getvalue().splitlines() == [
        (
            "  20 s  decode gpt_oss: 2 of 4 schedules, 10 replays (6 padded): no "
            "difference found; about 40 s left"
        ),
        "  40 s  decode gpt_oss finished: undecided: [a part] has moved; about 40 s left",
        (
            "  40 s  cpu_graph mimo: 60 of 150 steps, 300 replays (180 padded): no "
            "difference found; about 10 s left"
        ),
        "  40 s  cpu_graph mimo finished: no difference found",
    ]
