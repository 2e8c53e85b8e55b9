"""State beside KV is seen like KV: recurrent states by their index, the draft table by its rows.

Faults of our own runners are planted in their contracts; what a check says is also asked on
observations made by hand.
"""

from dataclasses import replace

import pytest
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.property import Violation, judge
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation, Snapshot
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.reference.state_pool import Section
from paritybit.subjects.contracts import Policy, override
from paritybit.subjects.engine import Subject
from torch import Tensor

from properties.support.harness.observations import LAYOUT, OWNERS, observation

pytestmark = pytest.mark.usefixtures("captures_when_needed")

ADMITTED: tuple[Step, ...] = tuple(Admit(prompt, 99) for prompt in (5, 3, 9))
ALL = (0, 1, 2)

STALE: dict[str, tuple[str, tuple[Step, ...], Section]] = {
    "decode": ("mamba_track_indices", (Decode(ALL), Decode((0,)), Idle(0)), Section.RECURRENT),
    "target_verify": (
        "mamba_track_indices",
        (Verify(ALL, 1), Verify((0,), 0), Idle(1)),
        Section.RECURRENT,
    ),
    "eagle_draft": (
        "req_pool_indices",
        (DraftExtend(ALL), Draft(ALL), Draft((0,)), Idle(2)),
        Section.DRAFT_TABLE,
    ),
    "frozen_kv_mtp": (
        "req_pool_indices",
        (DraftExtend(ALL), Draft(ALL), Draft((0,)), Idle(2)),
        Section.DRAFT_TABLE,
    ),
}
"""Of a runner: an index whose tail is left stale, what leaves it so, and the state it reaches."""


def trial_of(runner: str, device: str) -> TrialConfig:
    """Return the trial of a runner in sizes that are just enough."""
    return TrialConfig(runner, device=device, rows=4, buckets=(2, 4), token_buckets=(4, 12))


def build(
    runner: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    stale: str | None = None,
    *,
    records_ops: bool = False,
) -> Lockstep:
    """Return a lockstep of a runner whose padded rows keep one index, or a clean one."""
    right = TrialConfig.subject

    def subject(trial: TrialConfig) -> Subject:
        found = right(trial)
        changes = {stale: {"policy": Policy.KEEP}} if stale is not None else {}
        return replace(found, contract=override(found.contract, changes))

    with monkeypatch.context() as patch:
        patch.setattr(TrialConfig, "subject", subject)
        return Lockstep(trial_of(runner, device), STEP_PROPERTIES, records_ops=records_ops)


def played(lockstep: Lockstep, *steps: Step) -> Outcome:
    """Play steps after three requests were admitted."""
    outcome = lockstep.play(Schedule((*ADMITTED, *steps), seed=3))
    assert outcome.error is None, outcome.error
    return outcome


@pytest.mark.parametrize("runner", ["target_verify", "frozen_kv_mtp"])
def test_a_stale_index_of_padded_rows_is_seen_in_the_state_it_reaches(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By parity and by the frame, in the very step; the right contract violates nothing."""
    stale, steps, section = STALE[runner]
    assert not played(build(runner, device, monkeypatch), *steps).violations
    outcome = played(build(runner, device, monkeypatch, stale), *steps)
    found = {violation.property: violation for violation in outcome.violations}
    assert {"kv_parity", "write_frame"} <= found.keys()
    for name in ("kv_parity", "write_frame"):
        assert found[name].where["section"] == section
        assert found[name].where["place"] != 0
        assert found[name].where["owner"].startswith("request ")


def place_of(side: Snapshot, section: Section) -> Tensor:
    """Return a section of one run after the step."""
    return LAYOUT.sections_of(side.after)[section]


def violation_of(name: str, found: Observation) -> Violation | None:
    """Return what a property of steps says of an observation."""
    return next(iter(judge([PROPERTIES[name]], found)), None)


FRAMES = {
    Mode.EXTEND: (Section.RECURRENT, 0),
    Mode.DECODE: (Section.RECURRENT, 0),
    Mode.TARGET_VERIFY: (Section.RECURRENT, 1),
    Mode.DRAFT: (Section.DRAFT_TABLE, 0),
    Mode.FROZEN_DRAFT: (Section.DRAFT_TABLE, 0),
}
"""What a forward of a mode may write of its own requests: a section, and a row of the place."""


@pytest.mark.parametrize(
    ("section", "row"),
    [(Section.RECURRENT, 0), (Section.RECURRENT, 1), (Section.DRAFT_TABLE, 0)],
)
@pytest.mark.parametrize("mode", Mode)
def test_a_step_writes_the_state_of_its_own_requests_that_its_mode_writes(
    mode: Mode, section: Section, row: int
) -> None:
    """A verify the states of a tree's nodes, not the request's own; a decode the other way."""
    found = observation(mode)
    serial = found.graph.serial_at(found.graph.spans[0].row)
    place = next(owner.place(section) for owner in OWNERS if owner.serial == serial)
    for side in (found.eager, found.graph):
        place_of(side, section)[place, row] = 3.5
    assert (violation_of("write_frame", found) is None) == (FRAMES.get(mode) == (section, row))
