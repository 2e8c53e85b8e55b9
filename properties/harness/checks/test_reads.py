"""read_frame on key lists made by hand."""

from dataclasses import replace

import pytest
from paritybit.harness.checks.step_properties.read_frame import judge
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import Mode
from paritybit.subjects.protocol import Keys
from torch import Tensor

from properties.support.harness.observations import FREE, OWNERS, observation
from properties.support.harness.planting import ONE_PER_ENGINE, SCHEDULE, shared


def with_keys(observed: Observation, **changes: Tensor) -> Observation:
    """Return an observation whose lists of full layers are changed."""
    assert observed.keys is not None
    full = replace(observed.keys.full, **changes)
    return replace(observed, keys=replace(observed.keys, full=full))


@pytest.mark.parametrize("mode", Mode)
def test_a_key_more_or_less_of_any_row_is_detected(mode: Mode) -> None:
    """For a padded row, any key but slot 0."""
    right = observation(mode)
    assert right.keys is not None and judge(right) is None
    full = right.keys.full
    for row in range(len(full.begin)):
        padded = int(full.slots[full.begin[row]]) == 0
        less, more, other = full.end.clone(), full.end.clone(), full.slots.clone()
        less[row] -= 1
        other[full.begin[row]] = FREE
        assert (judge(with_keys(right, end=less)) is None) == padded
        assert judge(with_keys(right, slots=other)) is not None
        if row + 1 < len(full.begin):
            more[row] += 1
            harmless = padded and int(full.slots[full.end[row]]) == 0
            assert (judge(with_keys(right, end=more)) is None) == harmless


@pytest.mark.parametrize("slot", [OWNERS[0].full_pages[1], -1, 10_000])
def test_a_slot_read_twice_and_an_invalid_slot_are_detected(slot: int) -> None:
    right = observation()
    assert right.keys is not None
    right.keys.full.slots[0] = slot
    found = judge(right)
    assert found is not None
    assert found[0].startswith("live row 0 reads ")


def test_missing_and_endless_rows_are_detected() -> None:
    right = observation()
    assert right.keys is not None
    full, swa = (Keys(k.begin[:1], k.end[:1], k.slots) for k in (right.keys.full, right.keys.swa))
    assert judge(replace(right, keys=replace(right.keys, full=full, swa=swa))) is not None
    assert judge(with_keys(right, end=right.keys.full.end + 2**40)) is not None


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_the_lists_of_all_forwards_but_those_of_an_idle_prefill_are_observed(
    engine: str, device: str
) -> None:
    player = shared(device, engine)
    without: list[Observation] = []

    def observer(
        place: int, step: Step, observed: Observation | None, violated: frozenset[str]
    ) -> None:
        if observed is not None and observed.keys is None:
            without.append(observed)

    player.set_properties(CHEAP_PROPERTIES)
    assert player.play(SCHEDULE, observer).violations == ()
    assert all(one.graph.batch is None and one.mode is Mode.EXTEND for one in without)
