"""Every check sees a fault that is planted where it would arise, and no other check does.

What a property makes of what was observed is tested on observations made by hand; here, that
what a fault does is observed at all.
"""

import pytest
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import FRESH_LOGGER, SUBJECT_LOGGER, TrialConfig
from paritybit.harness.lockstep.logs import LogTrap
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import Mode
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS, engine_runners

from properties.support.harness.faults import FAULTS
from properties.support.harness.planting import ONE_PER_ENGINE, SCHEDULE, Plant, play, shared


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_the_schedule_is_clean_without_a_fault(engine: str, device: str) -> None:
    """It replays every runner, padded and not, and the fallback of a draft-extend too long."""
    seen: set[tuple[str, bool]] = set()
    eager_modes: set[Mode] = set()

    def observer(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        if observation is None or observation.graph.batch is None:
            return
        if observation.replay is not None:
            seen.add((observation.replay.runner, observation.replay.padded))
        else:
            eager_modes.add(observation.mode)

    player = shared(device, engine)
    player.set_properties(PROPERTIES)
    outcome = player.play(SCHEDULE, observer)
    assert outcome.error is None
    assert outcome.violations == ()
    names = {runner.name for runner in engine_runners(engine)}
    assert {name for name, padded in seen if padded} == names
    unpadded = {name for name, padded in seen if not padded}
    assert unpadded >= {name for name in names if not RUNNERS[name].token_buckets} - {
        "eagle_draft_extend"
    }
    assert eager_modes == {Mode.EXTEND if engine == "cpu_graph" else Mode.DRAFT_EXTEND}


@pytest.mark.parametrize(
    ("property_id", "runner", "plant"),
    [(name, runner, plant) for name, runners, plant in FAULTS for runner in runners],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_planted_fault_is_seen_by_one_property(
    property_id: str, runner: str, plant: Plant, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, runner, plant, monkeypatch)
    assert outcome.violated == {property_id}


def test_every_property_has_a_fault_here_or_in_the_catalogue() -> None:
    planted = {property_id for property_id, _, _ in FAULTS}
    assert planted | {one for bug in BUGS.values() for one in bug.expected.values()} == set(
        PROPERTIES
    )


def refused(runner: str, device: str) -> TrialConfig:
    """Return a trial whose engine cannot be captured, as small as it gets."""
    trial = TrialConfig(runner, device=device, buckets=(2,), token_buckets=(4,))
    return trial.with_bug("shared_buffer_dtype")


def test_a_static_buffer_that_two_runners_share_in_two_dtypes_is_seen_before_any_step(
    device: str,
) -> None:
    player = SchedulePlayer(refused("piecewise", device))
    outcome = player.play(SCHEDULE)
    assert [(found.property, found.step) for found in outcome.violations] == [("index_contract", 0)]
    assert "static buffer positions is shared as" in outcome.violations[0].message
    assert outcome.steps == 0


def test_only_the_subject_is_heard() -> None:
    """What the fresh engine logs is not the subject's: it runs without a history of its own."""
    with LogTrap() as trap:
        FRESH_LOGGER.warning("fresh engine")
        SUBJECT_LOGGER.warning("subject")
        SUBJECT_LOGGER.info("quiet")
    SUBJECT_LOGGER.warning("afterwards")
    assert trap.take() == ("subject",)
