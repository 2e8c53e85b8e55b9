"""How far a bug got: its code ran, its step went wrong; whether anything saw it is not asked."""

import pytest
from paritybit.harness.campaigns.task import Task, run_task
from paritybit.harness.explain.facts import Reach
from paritybit.harness.explain.reach import Reaching
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.schedule import Admit, Decode, Finish, Schedule, Step
from paritybit.reference.allocator import Allocator, PageAllocation
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.expected import DECODE, seen
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.leaking import Leaking

ADMIT = Admit(3, 99)
UNPADDED = (ADMIT, ADMIT, ADMIT, ADMIT, Decode((0, 1, 2, 3)))


class Harmless(Allocator):
    """An allocator that does what the right one does."""

    def free(self, allocation: PageAllocation) -> None:
        """Free all pages."""
        super().free(allocation)


class Inheriting(Harmless):
    """An allocator whose code is that of its base class."""


def trial(device: str, bug: str) -> TrialConfig:
    """Return the trial of a bug on decode, with one captured size."""
    return TrialConfig("decode", device=device, buckets=(4,), token_buckets=(12,)).with_bug(bug)


def followed(device: str, bug: str, *steps: Step) -> Reach:
    """Follow a bug through one schedule."""
    return Reaching(Pair(trial(device, bug)), BUGS[bug]).count([Schedule(steps)])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((ADMIT,), Reach(1, 0, 0, None, None)),
        (UNPADDED, Reach(1, 0, 0, None, None)),
        ((ADMIT, Decode((0,))), Reach(1, 1, 0, 1, None)),
        ((*UNPADDED, Decode((0, 1))), Reach(1, 1, 1, 5, 5)),
    ],
    ids=["no replay", "no padding", "padding that holds nothing stale", "stale padding"],
)
def test_a_stale_tail_is_reached_by_padding_and_triggered_once_something_stale_is_left(
    device: str, steps: tuple[Step, ...], expected: Reach
) -> None:
    assert followed(device, "req_pool_pad", *steps) == expected


def test_a_bug_that_another_site_hides_is_reached_and_never_triggered(device: str) -> None:
    reach = followed(device, "loc_memo_warning.entry", *UNPADDED, Decode((0, 1)))
    assert (reach.reached, reach.triggered) == (1, 0)


@pytest.mark.parametrize(("part", "triggered"), [(Leaking, 1), (Harmless, 0), (Inheriting, 0)])
def test_code_that_runs_is_reached_and_triggers_if_it_does_anything_else(
    device: str, part: type, triggered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = seen("kv_parity", DECODE)
    parts = {Part.ALLOCATOR: part}
    planted = Bug("planted", "planted", LocationScheme.MEMO, "", "", expected, parts=parts)
    monkeypatch.setitem(BUGS, planted.name, planted)
    steps = ADMIT, Decode((0,)), Finish(0), ADMIT
    reach = followed(device, planted.name, *steps)
    assert (reach.reached, reach.triggered, reach.reached_at) == (1, triggered, 2)


def test_a_hunt_tells_how_far_a_bug_got_that_it_missed(device: str) -> None:
    """In the few schedules drawn it was not seen; the result says whether it was triggered."""
    missed = run_task(Task(trial(device, "swa_pad"), 3, 1))
    assert missed.reach is not None
    assert missed.reach.schedules == 1
    caught = run_task(Task(trial(device, "swa_pad"), 0, 20))
    assert caught.status is Status.CAUGHT
    assert caught.reach is not None
    assert (caught.reach.reached, caught.reach.triggered) == (1, 1)
