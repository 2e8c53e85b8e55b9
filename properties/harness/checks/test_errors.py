"""An error is no violation, but one of the subject is; what loses the device ends the process."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from paritybit.harness.checks import play as playing
from paritybit.harness.checks.play import DeviceLostError, Outcome, SchedulePlayer
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.step_properties.no_crash import EXTRA_RUN
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.protocol import ForwardResult

from properties.support.harness.planting import captured, shared

SCHEDULE = Schedule((Admit(5, 9), Admit(3, 9), Decode((0, 1)), Decode((1,))))
FAILS_AT = 2
"""The place of the first decode: before it come two steps that go well."""

Planted = Callable[[SchedulePlayer, pytest.MonkeyPatch, Exception], None]
"""Makes a part of a player raise an error, in the first decode where it is a step's."""


@pytest.fixture
def player(device: str) -> SchedulePlayer:
    """A clean player, judged by all properties."""
    found = shared(device, "cpu_graph")
    found.set_properties(PROPERTIES)
    return found


def raising(error: Exception) -> Callable[..., Any]:
    """Return a function that raises, in whose name it can be found in a traceback."""

    def the_part_that_fails(*given: object, **named: object) -> Any:
        raise error

    return the_part_that_fails


def decodes(observation: Observation) -> bool:
    """Whether a step is one that is to fail."""
    return observation.mode is Mode.DECODE


def in_the_eager_forward(
    player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The reference fails."""
    forward, fail = player.pair.eager_decoder.forward, raising(error)

    def failing(batch: ForwardBatch) -> Output:
        return fail() if batch.mode == "decode" else forward(batch)

    monkeypatch.setattr(player.pair.eager_decoder, "forward", failing)


def in_planning(player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The scheduler of the graph run fails."""
    plan, fail = player.pair.graph_scheduler.plan, raising(error)
    monkeypatch.setattr(
        player.pair.graph_scheduler,
        "plan",
        lambda step: (fail if isinstance(step, Decode) else plan)(step),
    )


def with_part(part: str, failing: Callable[[Callable[..., Any]], Any], rule: str) -> Planted:
    """Return what makes one part of a property's file fail."""

    def plant(player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        broken = replace(PROPERTIES[rule], **{part: failing(raising(error))})
        monkeypatch.setattr(playing, "PROPERTIES", {**PROPERTIES, rule: broken})
        player.set_properties(PROPERTIES)

    plant.__name__ = f"in the {part} of {rule}"
    return plant


def in_decodes(fail: Callable[..., Any]) -> Callable[[Observation], Any]:
    """Return a judge that fails in a decode."""
    return lambda observation: fail() if decodes(observation) else None


def before_decodes(fail: Callable[..., Any]) -> Callable[[Pair, PlannedStep], Any]:
    """Return an extra run that fails before a decode."""
    return lambda pair, planned: fail() if planned.index == FAILS_AT else None


def always(fail: Callable[..., Any]) -> Callable[..., Any]:
    """Return what fails whenever it is called."""
    return fail


NOT_THE_SUBJECT: list[Planted] = [
    in_the_eager_forward,
    in_planning,
    with_part("judge", in_decodes, "kv_parity"),
    with_part("extra_run", before_decodes, "hermetic_replay"),
    with_part("extra_run", before_decodes, "batch_invariance"),
    with_part("judge_schedule", always, "dense_agreement"),
]
"""Whatever is the harness's own or the reference's."""


def outcome_of(
    plant: Planted, player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> Outcome:
    """Play the schedule while a part fails."""
    plant(player, monkeypatch, error)
    return player.play(SCHEDULE)


@pytest.mark.parametrize("plant", NOT_THE_SUBJECT, ids=lambda plant: plant.__name__)
def test_an_error_outside_the_subject_is_reported_and_violates_nothing(
    plant: Planted, player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = outcome_of(plant, player, monkeypatch, KeyError("out of something"))
    assert outcome.violations == ()
    assert not outcome.device_lost
    assert outcome.error is not None
    assert outcome.error.startswith("Traceback (most recent call last):")
    assert "the_part_that_fails" in outcome.error
    assert "out of something" in outcome.error.splitlines()[-1]
    assert outcome.error.splitlines()[-1].startswith("KeyError")


def in_the_subject(number: int) -> Planted:
    """Return what makes a decode of the subject, or of the fresh engine beside it, fail."""

    def plant(player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        engine = captured(player)[number]
        forward, fail = engine.forward, raising(error)

        def failing(batch: ForwardBatch | None, *given: Any) -> ForwardResult:
            is_decode = batch is not None and batch.mode == "decode"
            found: ForwardResult = fail() if is_decode else forward(batch, *given)
            return found

        monkeypatch.setitem(vars(engine), "forward", failing)

    plant.__name__ = ("in the subject", "in the fresh engine")[number]
    return plant


OF_THE_SUBJECT = [in_the_subject(0), in_the_subject(1)]


@pytest.mark.parametrize("number", [0, 1], ids=["subject", "fresh engine"])
def test_an_error_of_the_subject_violates_no_crash_alone(
    number: int, player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is the error's first line. `where` names an extra run that failed."""
    failure = IndexError("index 10000 is out of bounds\nof something")
    outcome = outcome_of(OF_THE_SUBJECT[number], player, monkeypatch, failure)
    message = "the step failed: index 10000 is out of bounds"
    where = {EXTRA_RUN: "hermetic_replay"} if number else {}
    assert outcome.violations == (Violation("no_crash", FAILS_AT, message, where),)
    assert outcome.error is None
    assert outcome.steps == FAILS_AT


def test_a_subject_without_memory_violates_nothing(
    player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = outcome_of(OF_THE_SUBJECT[0], player, monkeypatch, torch.OutOfMemoryError("full"))
    assert outcome.violations == ()
    assert outcome.error is not None


@pytest.mark.parametrize(
    "plant", [in_the_eager_forward, *OF_THE_SUBJECT], ids=lambda plant: plant.__name__
)
def test_an_error_that_loses_the_device_is_raised_wherever_it_is(
    plant: Planted, player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the schedule and the outcome so far: no further schedule can be played here."""
    lost = torch.AcceleratorError("device-side assert triggered")
    with pytest.raises(DeviceLostError, match="device-side assert triggered") as raised:
        outcome_of(plant, player, monkeypatch, lost)
    assert raised.value.schedule == SCHEDULE
    outcome = raised.value.outcome
    assert outcome.device_lost
    assert bool(outcome.violations) == (plant in OF_THE_SUBJECT)
    assert (outcome.error is None) == (plant in OF_THE_SUBJECT)
