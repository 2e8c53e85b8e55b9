"""Where the pool's memo warns: nowhere in a right build, and where which call site is missing.

A site is switched off in runners that were captured right: no replay depends on how its graph
was captured but for what it holds, and captures are looked at by themselves. What is expected
of a runner stands in the table of `support.runners`.
"""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paritybit.harness.checks.expectations import affected_runners
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.generate import schedules
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.pool import TRANSLATE
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.engines import ENGINE_OF, ENGINES, trial_of
from properties.support.subjects.graph_world import GraphWorld, shared_world
from properties.support.subjects.runners import EXPECTED, MEMO, NO_AFTER, NO_ENTRY_NOR_BEFORE, Paths

LOUD = (NO_AFTER, NO_ENTRY_NOR_BEFORE)
"""Bugs without sites that nothing hides."""

STEPS: tuple[Step, ...] = (
    Admit(5, chunk=5),
    Idle(0),
    Admit(15, chunk=4),
    Idle(1),
    Extend(0, tokens=20),
    Idle(2),
    Idle(2),
    Decode((0,)),
    Decode((0, 1)),
    DraftExtend((0, 1)),  # too long for a graph
    Idle(3),
    Draft((0, 1)),
    Verify((0, 1), accept=1),
    DraftExtend((1, 0)),
    Draft((1,)),
    Verify((0,), accept=0),
    Decode((1, 0)),
    Evict(1),
    Retract(0),
    Idle(0),
    Resume(0),
    Decode((0, 1)),
    Finish(0),
    Admit(25, chunk=25),  # likewise
    DraftExtend((0, 1)),
    Idle(2),
    Draft((0, 1)),
    Decode((0, 1)),
)

ASKED: Paths = {
    ("extend", "replay"): 4,
    ("extend", "eager"): 1,
    ("decode", "replay"): 5,
    ("target_verify", "replay"): 2,
    ("draft", "replay"): 3,
    ("frozen_draft", "replay"): 3,
    ("draft_extend", "replay"): 1,
    ("draft_extend", "eager"): 2,
}
"""How many forwards of a batch these steps ask for, of an engine that has a runner for each mode.

One that cannot prefill by graph prefills eagerly; what else it has no runner for, it leaves.
"""


def paths_of(world: GraphWorld) -> Paths:
    """Return what the steps ask of a world, idle steps among it."""
    modes = {runner.mode for runner in world.runners.values()}
    found = Counter({path: count for path, count in ASKED.items() if path[0] in modes})
    if Mode.EXTEND not in modes:
        found["extend", "eager"] = 5
    idle = [mode for mode in Mode if mode in modes and mode is not Mode.EXTEND]
    for step in STEPS:
        if isinstance(step, Idle):
            found[str(idle[step.pick % len(idle)]), "replay"] += 1
    return dict(found)


def play(world: GraphWorld, schedule: Schedule) -> tuple[Paths, Paths]:
    """Play a schedule; return how many forwards, and how many warnings, each path had."""
    forwards, warnings = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    world.reset(schedule.seed)
    for _, step in schedule.flat():
        logged = len(world.warnings)
        ran = world.run(step)
        if ran is not None:
            forwards[ran.path] += 1
            warnings[ran.path] += len(world.warnings) - logged
    return dict(forwards), dict(+warnings)


def play_without(world: GraphWorld, bug: str, runners: Iterable[str], steps: Schedule) -> Paths:
    """Play a schedule with the sites of a bug switched off in some runners; return the warnings."""
    broken = TrialConfig().with_bug(bug).subject().toggles
    with pytest.MonkeyPatch.context() as patch:
        for runner in runners:
            patch.setattr(world.runners[runner], "toggles", broken)
        forwards, warnings = play(world, steps)
    assert steps.steps is not STEPS or forwards == paths_of(world)
    return warnings


@pytest.mark.parametrize("engine", ENGINES)
def test_a_clean_subject_logs_nothing(engine: str, device: str) -> None:
    """Neither when its graphs are captured nor in any step."""
    for scheme in LocationScheme:
        world = shared_world(trial_of(engine, scheme, device))
        assert world.capture_warnings == (), scheme
        assert play(world, Schedule(STEPS)) == (paths_of(world), {}), scheme


MASKED = ("loc_memo_warning.entry", "loc_memo_warning.before_window")
"""Sites that another one hides."""


def test_these_bugs_of_the_catalogue_are_masked_in_every_runner() -> None:
    assert {name for name in BUGS if not affected_runners(BUGS[name])} == {*MASKED}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MASKED)
def test_a_masked_site_warns_on_no_path(name: str, engine: str, device: str) -> None:
    """Missing in all runners at once, which leaves more keys to find than missing in any one."""
    world = shared_world(trial_of(engine, MEMO, device))
    assert play_without(world, name, world.runners, Schedule(STEPS)) == {}


@pytest.mark.parametrize("name", MASKED)
@given(data=st.data())
@settings(max_examples=6)
def test_a_masked_site_warns_in_no_step(device: str, name: str, data: st.DataObject) -> None:
    """Of any schedule, of either engine that speculates."""
    engine = data.draw(st.sampled_from([ENGINE_OF["eagle_draft"], ENGINE_OF["frozen_kv_mtp"]]))
    world = shared_world(trial_of(engine, MEMO, device))
    favoured = data.draw(st.sampled_from([Mode.DECODE, Mode.DRAFT_EXTEND]))
    schedule = data.draw(schedules(world.config, (4,), (12,), world.trial.modes, favoured))
    assert play_without(world, name, world.runners, schedule) == {}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_site_that_is_not_masked_warns_where_python_translates(runner: str, device: str) -> None:
    """And exactly the runners that warn are said to be affected."""
    world = shared_world(trial_of(ENGINE_OF[runner], MEMO, device))
    for name in LOUD:
        wanted = EXPECTED[runner].warns_without.get(name, {})
        assert play_without(world, name, [runner], Schedule(STEPS)) == wanted, name
        assert (runner in affected_runners(BUGS[name])) == bool(wanted), name


def test_every_runner_says_only_of_these_sites_where_it_warns() -> None:
    assert {name for row in EXPECTED.values() for name in row.warns_without} == {*LOUD}


@pytest.mark.parametrize("runner", RUNNERS)
def test_without_before_window_a_capture_warns_that_finds_a_key(runner: str, device: str) -> None:
    trial = TrialConfig(runner, device=device, buckets=(2, 4), token_buckets=(4,))
    world = GraphWorld(trial.with_bug("loc_memo_warning.before_window"))
    assert len(world.capture_warnings) == EXPECTED[runner].capture_warnings


@pytest.mark.parametrize("runner", [n for n, row in EXPECTED.items() if row.spoiled_by_a_memo()])
def test_a_capture_that_finds_the_memo_of_its_warm_up_holds_no_translation(
    runner: str, device: str
) -> None:
    """The harmful case of the memo, which the invalidation at the top of a run prevents."""
    trial = TrialConfig(runner, device=device, buckets=(2,), token_buckets=(4,))
    world = GraphWorld(trial.with_bug("loc_memo_capture"))
    for name, captured in world.runners.items():
        wanted = 0 if name == runner else captured.translations(MEMO)
        for bucket in captured.buckets:
            assert captured.operations(bucket).count(TRANSLATE) == wanted, name


def test_the_catalogue_names_the_runners_whose_capture_the_memo_can_spoil() -> None:
    spoiled = {name for name, row in EXPECTED.items() if row.spoiled_by_a_memo()}
    assert set(affected_runners(BUGS["loc_memo_capture"])) == spoiled
