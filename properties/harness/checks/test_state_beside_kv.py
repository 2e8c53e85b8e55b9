"""Recurrent states are compared like KV, by their index.

Faults of our own runners are planted in their contracts; what a check says is also asked on
observations made by hand.
"""

from dataclasses import replace

import pytest
from paritybit.harness.checks.play import Outcome, SchedulePlayer
from paritybit.harness.checks.property import Violation, judge_step
from paritybit.harness.checks.table import CHEAP_PROPERTIES, PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Idle,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.subjects.contracts import Policy, override
from paritybit.subjects.engine import Subject

from properties.support.harness.observations import LAYOUT, OWNERS, observation

ADMITTED: tuple[Step, ...] = tuple(Admit(prompt, 99) for prompt in (5, 3, 9))
ALL = (0, 1, 2)

STALE: dict[str, tuple[Step, ...]] = {
    "decode": (Decode(ALL), Decode((0,)), Idle(0)),
    "target_verify": (Verify(ALL, 1), Verify((0,), 0), Idle(1)),
}
"""Steps of a runner that leave a stale index of states, and then pad."""


def trial_of(runner: str, device: str) -> TrialConfig:
    """Return the trial of a runner in sizes that are just enough."""
    return TrialConfig(runner, device=device, rows=4, buckets=(2, 4), token_buckets=(4, 12))


def build(
    runner: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    stale: str | None = None,
) -> SchedulePlayer:
    """Return a player of a runner whose padded rows keep one index, or a clean one."""
    right = TrialConfig.subject

    def subject(trial: TrialConfig) -> Subject:
        found = right(trial)
        changes = {stale: {"policy": Policy.KEEP}} if stale is not None else {}
        return replace(found, contract=override(found.contract, changes))

    with monkeypatch.context() as patch:
        patch.setattr(TrialConfig, "subject", subject)
        return SchedulePlayer(trial_of(runner, device), CHEAP_PROPERTIES)


def played(player: SchedulePlayer, *steps: Step) -> Outcome:
    """Play steps after three requests were admitted."""
    outcome = player.play(Schedule((*ADMITTED, *steps), seed=3))
    assert outcome.error is None, outcome.error
    return outcome


@pytest.mark.parametrize("runner", STALE)
def test_a_stale_index_of_padded_rows_is_seen_in_the_state_it_reaches(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By parity and by the frame, in the very step; the right contract violates nothing."""
    stale, steps = "mamba_track_indices", STALE[runner]
    assert not played(build(runner, device, monkeypatch), *steps).violations
    outcome = played(build(runner, device, monkeypatch, stale), *steps)
    found = {violation.property: violation for violation in outcome.violations}
    assert {"kv_parity", "write_frame"} <= found.keys()
    for name in ("kv_parity", "write_frame"):
        assert found[name].where["state_slot"] != 0
        assert found[name].where["owner"].startswith("request ")


def violation_of(name: str, found: Observation) -> Violation | None:
    """Return what a property of steps says of an observation."""
    return next(iter(judge_step([PROPERTIES[name]], found)), None)


FRAMES = {Mode.EXTEND: 0, Mode.DECODE: 0, Mode.TARGET_VERIFY: 1}
"""The row of a state slot that a forward of a mode may write for its own requests."""


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("mode", Mode)
def test_a_step_writes_the_state_of_its_own_requests_that_its_mode_writes(
    mode: Mode, row: int
) -> None:
    """A verify the states after its tokens, not the request's own; a decode the other way."""
    found = observation(mode)
    serial = found.graph.serial_at(found.graph.spans[0].row)
    slot = next(owner.state_slot for owner in OWNERS if owner.serial == serial)
    for side in (found.eager, found.graph):
        LAYOUT.states_of(side.after)[slot, row] = 3.5
    assert (violation_of("write_frame", found) is None) == (FRAMES.get(mode) == row)
