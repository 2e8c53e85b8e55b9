"""Every bug is detected on every runner that it affects, by the property that the table names.

The table is written before a bug is hunted. A bug that only another property sees is red, and
so is one that shows on a runner that it is said not to affect.
"""

from dataclasses import replace

import pytest
from paritybit.harness.campaigns.hunt import hunt
from paritybit.harness.campaigns.task import Source, Status, Task, pieces_of, run_task
from paritybit.harness.checks.expectations import (
    TABLE,
    affected_runners,
    detected_by,
    unaffected_reason,
)
from paritybit.harness.checks.expected import DECODE
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Idle, Schedule
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS

from properties.support.bug_pairs import (
    AFFECTED,
    MOST_REQUESTS,
    ONE_PAIR_PER_REASON,
    ONE_RUNNER_PER_BUG,
    Pair,
    detecting,
    pair_name,
)
from properties.support.harness.planting import SCHEDULE, captured, shared
from properties.support.harness.shrunk_sizes import most_steps
from properties.support.trials import bug_trial

EXAMPLES = 50
FEW = 4
PIECES = 4


@pytest.fixture
def trial(pair: Pair, device: str, request: pytest.FixtureRequest) -> TrialConfig:
    """The trial of a bug on a runner, on the preset that was asked for or on the pair's own."""
    return bug_trial(*pair, device, request.config.getoption("--preset"))


@pytest.mark.parametrize("pair", ONE_RUNNER_PER_BUG, ids=pair_name)
def test_a_bug_is_detected_and_shrinks_and_what_shows_it_is_green_without_it(
    pair: Pair, trial: TrialConfig, hunter_seed: int
) -> None:
    """Within 50 schedules, near minimal, seen with every property on, green without it.

    And in recorded traffic, where traffic reaches what shows it.
    """
    lockstep, target = Lockstep(trial), detecting(*pair)
    schedule = hunt(lockstep, target, hunter_seed, EXAMPLES).schedule
    assert schedule is not None
    assert len(schedule.steps) <= most_steps(pair[0])
    assert sum(step.name == "admit" for step in schedule.steps) <= MOST_REQUESTS
    lockstep.watch(PROPERTIES)
    assert target in lockstep.play(schedule).violated
    clean = Lockstep(trial.clean, PROPERTIES).play(schedule)
    assert (clean.error, clean.violations) == (None, ())
    if BUGS[pair[0]].in_traffic:
        lockstep.watch(STEP_PROPERTIES)
        pieces = pieces_of(trial, PIECES, 0)
        assert any(target in lockstep.play(piece, until={target}).violated for piece in pieces)


@pytest.mark.parametrize("pair", ONE_PAIR_PER_REASON, ids=pair_name)
def test_a_bug_shows_in_no_step_of_a_runner_that_it_does_not_affect(
    pair: Pair, trial: TrialConfig, hunter_seed: int
) -> None:
    """No property sees it, over schedules that replay with padding."""
    result = run_task(Task(trial, Source.GENERATED, hunter_seed, FEW))
    assert result.status is Status.UNAFFECTED


def small(device: str, runner: str = "decode") -> TrialConfig:
    """Return a clean trial whose graphs are few."""
    return TrialConfig(runner, device=device, buckets=(4,), token_buckets=(12,))


def test_every_bug_and_runner_is_decided_once() -> None:
    """A pair is affected, or there is a reason; the table names no bug that there is not."""
    for bug in BUGS.values():
        for runner in RUNNERS:
            reason = unaffected_reason(bug, runner)
            assert (reason is None) == (runner in affected_runners(bug))
            assert reason is None or len(reason) > 10
            assert not (reason is None and lacking(bug, runner))
    assert TABLE.keys() == BUGS.keys()
    for row in TABLE.values():
        assert not row.affected & row.unaffected.keys()


def test_a_bug_without_a_row_is_an_error() -> None:
    unheard = replace(BUGS["req_pool_pad"], name="unheard_of")
    with pytest.raises(KeyError, match="unheard_of"):
        unaffected_reason(unheard, "decode")


def test_a_pair_that_nobody_decided_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    row = TABLE["req_pool_pad"]
    monkeypatch.setitem(TABLE, "req_pool_pad", replace(row, affected=row.affected - {DECODE}))
    with pytest.raises(KeyError, match="decided"):
        unaffected_reason(BUGS["req_pool_pad"], "decode")


def test_every_bug_but_a_masked_site_affects_a_runner() -> None:
    assert {name for name, bug in BUGS.items() if not affected_runners(bug)} == {
        "loc_memo_warning.entry",
        "loc_memo_warning.before_window",
    }


def test_the_memo_warns_in_a_replay_that_no_allocation_precedes(device: str) -> None:
    """Two idle steps: what the window of one left is there when the next translates its own."""
    lockstep = Lockstep(small(device).with_bug("loc_memo_warning"))
    outcome = lockstep.play(Schedule((Idle(0), Idle(0))))
    assert [found.property for found in outcome.violations] == ["log_hygiene"]
    assert outcome.violations[0].where["path"] == "graph replay"
    assert outcome.padded_replays == 2


def test_a_masked_site_is_detected_together_with_what_masks_it() -> None:
    masked = {bug.without for bug in BUGS.values() if detected_by(bug) is None}
    assert masked == {("entry",), ("before_window",)}
    assert detected_by(BUGS["loc_memo_warning.entry+before_window"]) == "log_hygiene"


@pytest.mark.parametrize("runner", affected_runners(BUGS["loc_memo_capture"]))
def test_a_stale_capture_is_silent(runner: str, device: str) -> None:
    """The memo hit that does harm warns nowhere: neither while capturing nor in any step."""
    lockstep = Lockstep(small(device, runner).with_bug("loc_memo_capture"))
    outcome = lockstep.play(SCHEDULE)
    assert "kv_parity" in outcome.violated
    assert "log_hygiene" not in outcome.violated
    assert lockstep.capture_warnings == ()


def test_a_bug_of_one_runner_leaves_the_others_of_its_engine_right(device: str) -> None:
    """Decode alone keeps the stale tail of its request rows; all others reset theirs."""
    lockstep = Lockstep(small(device).with_bug("req_pool_pad"))
    policies = {
        runner.name: runner.inputs.rows["req_pool_indices"].padding
        for runner in captured(lockstep)[0].runners.values()
        if "req_pool_indices" in runner.inputs.rows
    }
    assert policies.pop("decode") == "keep"
    assert set(policies.values()) == {"fill 0"}


def test_every_property_that_must_detect_a_bug_is_checked_at_every_step() -> None:
    assert {detecting(*pair) for pair in AFFECTED} <= STEP_PROPERTIES


def test_the_runners_of_an_engine_replay_on_one_pool_of_static_buffers(device: str) -> None:
    """What a runner leaves in a shared buffer is another's stale tail."""
    runners = captured(shared(device, "decode"))[0].runners.values()
    sharing = [r for r in runners if "positions" in r.inputs.buffers]
    addresses = {r.inputs.buffers["positions"].data_ptr() for r in sharing}
    assert len(addresses) < len(sharing)
