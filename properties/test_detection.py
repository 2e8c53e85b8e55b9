"""Every bug is caught on every runner it can harm, by the property its row names.

The table is `harness/checks/expectations.py`. A bug that only another property sees is red,
and so is one that shows where it cannot harm.
"""

from dataclasses import replace
from functools import cache

import pytest

from harness.campaigns.hunt import HuntResult, first_failure, hunt
from harness.campaigns.task import Source, Status, Task, pieces_of, run_task
from harness.checks.expectations import (
    DECODE,
    TABLE,
    affected_runners,
    detected_by,
    unaffected_reason,
)
from harness.checks.play import Lockstep
from harness.checks.table import PROPERTIES, STEP_PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.schedules.schedule import Admit, Decode, Idle, Schedule
from properties.support.shrunk_sizes import MOST_STEPS
from properties.trials import bug_trial, every_pair
from subjects.bugs.catalogue import BUGS
from subjects.bugs.switching import missing_inputs
from subjects.runners import RUNNERS

PAIRS = [pair for pair in every_pair() if "." not in pair[0]]
"""What the suite hunts; the memo's sites one by one are tried on all runners by the main job."""

AFFECTED = [pair for pair in PAIRS if unaffected_reason(BUGS[pair[0]], pair[1]) is None]
UNAFFECTED = [pair for pair in PAIRS if pair not in AFFECTED]
ONE_RUNNER_EACH = [
    (name, affected_runners(bug)[place % len(affected_runners(bug))])
    for place, (name, bug) in enumerate(BUGS.items())
    if affected_runners(bug)
]
"""Each bug on one runner: the main job shrinks, and plays traffic, on all of them."""

IN_TRAFFIC = [pair for pair in ONE_RUNNER_EACH if BUGS[pair[0]].in_traffic]

EXAMPLES = 50
FEW = 4
MOST_REQUESTS = 3
"""Two, and one more: the smallest batch that a CPU graph pads after it held more is of three."""


def pair_name(pair: tuple[str, str]) -> str:
    """Return a pair as a test id."""
    return "@".join(pair)


@cache
def hunted(trial: TrialConfig, seed: int) -> tuple[Lockstep, HuntResult]:
    """Return the hunt of one bug, done once."""
    assert trial.bug is not None
    lockstep = Lockstep(trial)
    return lockstep, hunt(lockstep, detected_by(BUGS[trial.bug]), seed, EXAMPLES)


@pytest.fixture
def trial(pair: tuple[str, str], device: str, request: pytest.FixtureRequest) -> TrialConfig:
    """The trial of a bug on a runner, on the preset that was asked for or on the pair's own."""
    return bug_trial(*pair, device, request.config.getoption("--preset"))


@pytest.mark.parametrize("pair", ONE_RUNNER_EACH, ids=pair_name)
def test_what_shows_a_bug_shrinks_and_is_green_without_it(
    pair: tuple[str, str], trial: TrialConfig, hunter_seed: int
) -> None:
    """Caught within 50 schedules, near minimal, seen with every property on, green without it."""
    lockstep, hunt_result = hunted(trial, hunter_seed)
    assert hunt_result.schedule is not None
    assert len(hunt_result.schedule.steps) <= MOST_STEPS[pair[0]]
    assert sum(step.name == "admit" for step in hunt_result.schedule.steps) <= MOST_REQUESTS
    lockstep.watch(PROPERTIES)
    assert detected_by(BUGS[pair[0]]) in lockstep.play(hunt_result.schedule).violated
    clean = Lockstep(trial.clean, PROPERTIES)
    assert clean.play(hunt_result.schedule).violations == ()


@pytest.mark.parametrize("pair", IN_TRAFFIC, ids=pair_name)
def test_a_bug_is_caught_on_real_traffic(pair: tuple[str, str], trial: TrialConfig) -> None:
    lockstep = Lockstep(trial)
    pieces = pieces_of(trial, 4, 0)
    assert first_failure(lockstep, pieces, detected_by(BUGS[pair[0]])).schedule is not None


@pytest.mark.parametrize("pair", UNAFFECTED, ids=pair_name)
def test_a_bug_that_cannot_harm_a_runner_shows_in_no_step(
    pair: tuple[str, str], trial: TrialConfig, hunter_seed: int
) -> None:
    """No property sees it, over schedules that replay with padding."""
    result = run_task(Task(trial, Source.GENERATED, hunter_seed, FEW))
    assert result.status is Status.UNAFFECTED


def test_every_bug_and_runner_is_decided_once() -> None:
    """A pair is affected, or there is a reason; no row is of a bug that there is not."""
    for bug in BUGS.values():
        for runner in RUNNERS:
            reason = unaffected_reason(bug, runner)
            assert (reason is None) == (runner in affected_runners(bug))
            assert reason is None or len(reason) > 10
            assert not (reason is None and missing_inputs(bug, runner))
    assert list(TABLE) == list(BUGS)
    for row in TABLE.values():
        assert not row.affected & row.unaffected.keys()


def test_every_bug_but_a_masked_site_harms_a_runner() -> None:
    assert {name for name, bug in BUGS.items() if not affected_runners(bug)} == {
        "loc_memo_warning.entry",
        "loc_memo_warning.before_window",
    }


def test_the_memo_warns_in_a_replay_that_no_allocation_precedes(device: str) -> None:
    """Two idle steps: what the window of one left is there when the next translates its own."""
    lockstep = Lockstep(TrialConfig(device=device).with_bug("loc_memo_warning"))
    outcome = lockstep.play(Schedule((Idle(0), Idle(0))))
    assert [each.property for each in outcome.violations] == ["log_hygiene"]
    assert outcome.violations[0].where["path"] == "graph replay"
    assert outcome.padded_replays == 2


def test_a_masked_site_is_caught_together_with_what_masks_it() -> None:
    masked = {bug.without for bug in BUGS.values() if detected_by(bug) is None}
    assert masked == {("entry",), ("before_window",)}
    assert detected_by(BUGS["loc_memo_warning.entry+before_window"]) == "log_hygiene"


@pytest.mark.parametrize("runner", affected_runners(BUGS["loc_memo_capture"]))
def test_a_stale_capture_is_silent(runner: str, device: str, hunter_seed: int) -> None:
    """The harmful memo hit warns nowhere: neither while capturing nor in any step."""
    trial = bug_trial("loc_memo_capture", runner, device, None)
    lockstep, hunt_result = hunted(trial, hunter_seed)
    assert hunt_result.schedule is not None
    lockstep.watch(PROPERTIES)
    outcome = lockstep.play(hunt_result.schedule)
    assert "kv_parity" in outcome.violated
    assert "log_hygiene" not in outcome.violated
    assert lockstep.capture_warnings == ()


def test_a_bug_of_one_runner_leaves_the_others_of_its_engine_right(device: str) -> None:
    """The stale rows of decode show nowhere while other runners replay, with padding too."""
    trial = TrialConfig(runner="decode", device=device).with_bug("req_pool_pad")
    lockstep = Lockstep(trial, PROPERTIES)
    engine = lockstep.pair.subject.engine
    policies = {
        runner.name: runner.inputs.rows["req_pool_indices"].padding
        for runner in engine.runners.values()
        if "req_pool_indices" in runner.inputs.rows
    }
    assert policies.pop("decode") == "keep"
    assert set(policies.values()) == {"fill 0"}


def test_a_bug_of_the_wrong_property_is_red(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that names another property is found out."""
    wrong = replace(TABLE["swa_pad"], detected_by="log_hygiene")
    monkeypatch.setitem(TABLE, "swa_pad", wrong)
    task = Task(TrialConfig(device=device).with_bug("swa_pad"), Source.GENERATED, 0, 20)
    assert run_task(task).status is Status.WRONG_PROPERTY


def test_a_bug_that_changes_nothing_is_missed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inert = replace(BUGS["swa_pad"], rows={})
    monkeypatch.setattr("harness.campaigns.task.BUGS", {**BUGS, "swa_pad": inert})
    monkeypatch.setattr("harness.lockstep.config.BUGS", {**BUGS, "swa_pad": inert})
    task = Task(TrialConfig(device=device).with_bug("swa_pad"), Source.GENERATED, 0, 5)
    assert run_task(task).status is Status.MISSED


def test_a_bug_that_harms_where_it_should_not_is_red(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that calls a bug harmless is found out."""
    row = TABLE["swa_pad"]
    harmless = {**row.unaffected, DECODE: "it is said to be right"}
    wrong = replace(row, affected=row.affected - {DECODE}, unaffected=harmless)
    monkeypatch.setitem(TABLE, "swa_pad", wrong)
    task = Task(TrialConfig(device=device).with_bug("swa_pad"), Source.GENERATED, 0, 20)
    assert run_task(task).status is Status.AFFECTED_AFTER_ALL


def test_every_property_that_must_catch_is_checked_at_every_step() -> None:
    assert {detected_by(BUGS[name]) for name, _ in AFFECTED} <= STEP_PROPERTIES


def test_the_decode_line_up_replays_all_its_runners_on_one_buffer_pool(device: str) -> None:
    """What a runner leaves in a shared buffer is another's stale tail."""
    lockstep = Lockstep(TrialConfig(device=device))
    lockstep.play(Schedule((Admit(3, 9), Admit(2, 9), Decode((0, 1)))))
    runners = lockstep.pair.subject.runners.values()
    sharing = [r for r in runners if "positions" in r.inputs.buffers]
    addresses = {r.inputs.buffers["positions"].data_ptr() for r in sharing}
    assert len(addresses) < len(sharing)
