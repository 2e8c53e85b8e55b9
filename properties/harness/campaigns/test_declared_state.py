"""State that no one declared: a finding shows in a fresh process, or is told to depend on it."""

import gc
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns import fresh
from paritybit.harness.campaigns.confirm import confirmed
from paritybit.harness.campaigns.fresh import (
    FreshPlaying,
    PlayFresh,
    begin_fresh,
    built,
    play_fresh,
)
from paritybit.harness.campaigns.hunt import HuntResult, PlayingFailedError
from paritybit.harness.campaigns.replay import Named, judged, lockstep_of
from paritybit.harness.campaigns.task import Task, run_task
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, write_case
from paritybit.harness.records.codec import load
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.schedule import Admit, Decode, Idle, Schedule
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.runners import ONE_PER_ENGINE
from torch import Tensor

from paritybit.__main__ import main
from properties.support.harness.planting import captured, shared
from properties.support.harness.scripted import ERROR, clean, violating
from properties.support.harness.undeclared import (
    TRIAL,
    Memory,
    after_a_larger,
    after_many,
    forget,
    keeping,
    of_a_module,
    of_a_runner,
)
from properties.support.places import CORPUS

HARMLESS = TRIAL.with_bug("loc_memo_warning.entry")
"""A bug that affects no runner: whatever is found is of something else."""

DRAWN = Schedule((Admit(1, 1), Admit(2, 2), Decode((0, 1))), seed=1)
SHRUNK = Schedule((Idle(0),), seed=1)
OTHERS = tuple(Schedule((Idle(0),) * count) for count in range(1, 6))

Place = Callable[[CapturedEngine], Memory]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Leave nothing on classes and modules."""
    yield
    forget()


def found_by(fresh: Callable[[tuple[Schedule, ...]], Outcome]) -> Any:
    """Return what is confirmed of a hunt's finding, and all that fresh processes played."""
    played: list[tuple[Schedule, ...]] = []

    def play(asked: FreshPlaying) -> Outcome:
        played.append(asked.schedules)
        return fresh(asked.schedules)

    seen = violating("kv_parity").violations
    hunted = HuntResult(schedule=SHRUNK, drawn=DRAWN, seen=seen, before=OTHERS)
    return confirmed(TRIAL, hunted, "kv_parity", (), play), played


def shown_if(shows: Callable[[tuple[Schedule, ...]], bool]) -> Callable[..., Outcome]:
    """Return a script: the target is violated by some schedules played in turn."""
    return lambda schedules: violating("kv_parity") if shows(schedules) else clean()


def test_a_shrunk_schedule_that_a_fresh_process_shows_is_kept() -> None:
    found, played = found_by(shown_if(lambda _: True))
    assert (found.schedule, found.undeclared) == (SHRUNK, None)
    assert played == [(SHRUNK,)]


def test_one_that_none_shows_is_shrunk_again_in_fresh_processes() -> None:
    """From what was drawn, which shows by itself as long as both requests are decoded."""
    decoding = shown_if(lambda schedules: any(len(s.steps) > 1 for s in schedules))
    found, _ = found_by(decoding)
    assert found.undeclared is None
    assert len(found.schedule.steps) == 2


@pytest.mark.parametrize(("needed", "kept"), [(1, 1), (2, 2), (3, 4), (5, 5)])
def test_one_that_shows_after_others_alone_is_told_as_undeclared_state(
    needed: int, kept: int
) -> None:
    """The unshrunk schedule is kept, with as many before it as it takes, or twice that."""
    found, _ = found_by(shown_if(lambda schedules: len(schedules) > needed))
    assert (found.schedule, found.history) == (DRAWN, OTHERS[-kept:])
    assert [one.property for one in found.violations] == ["kv_parity", "declared_state"]
    assert "depends on undeclared state" in found.undeclared.message
    assert f"it recurs after {kept} earlier schedule" in found.undeclared.message


def test_one_that_nothing_shows_again_is_told_as_undeclared_state_too() -> None:
    found, _ = found_by(shown_if(lambda _: False))
    assert (found.schedule, found.history) == (DRAWN, OTHERS)
    assert "it did not recur even after the 5 schedules" in found.undeclared.message


LAZY = replace(TRIAL, runner="decode").with_bug("req_pool_pad")
"""A bug whose trials capture what a schedule needs, and no more."""


@pytest.mark.parametrize("trial", [TRIAL, LAZY])
def test_a_process_that_has_captured_everything_decides(trial: TrialConfig) -> None:
    """Where what a schedule needs is all that was captured, and the finding did not show then."""
    asked: list[FreshPlaying] = []

    def play(playing: FreshPlaying) -> Outcome:
        asked.append(playing)
        return violating("kv_parity") if playing.captures_all else clean()

    seen = violating("kv_parity").violations
    hunted = HuntResult(schedule=SHRUNK, drawn=DRAWN, seen=seen)
    found = confirmed(trial, hunted, "kv_parity", (), play)
    if trial is LAZY:
        assert (found.schedule, found.undeclared) == (SHRUNK, None)
        assert [one.captures_all for one in asked] == [False, True]
    else:  # Every process of its has captured everything.
        assert found.undeclared is not None
        assert [one.captures_all for one in asked] == [False] * 2


def counting_captures(trial: TrialConfig, properties: Any) -> Lockstep:
    """Build a lockstep whose outcomes count the runners that are captured."""
    lockstep = built(trial, properties)
    play = lockstep.play

    def counted(*words: Any, **named: Any) -> Outcome:
        outcome = play(*words, **named)
        outcome.events["captured"] = len(captured(lockstep)[0].engine.captured)
        return outcome

    lockstep.play = counted  # type: ignore[method-assign]
    return lockstep


@pytest.mark.parametrize(
    ("trial", "captures_all", "count"),
    [(LAZY, False, 2), (LAZY, True, 5), (LAZY.with_bug("loc_memo_capture"), False, 5)],
)
def test_a_fresh_process_captures_what_its_schedules_need_unless_asked_for_all(
    trial: TrialConfig, captures_all: bool, count: int
) -> None:
    admits, decodes = Schedule((Admit(3, 9),)), Schedule((Admit(3, 9), Decode((0,))))
    asked = replace(playing(admits, decodes, trial=trial), captures_all=captures_all)
    assert play_fresh(asked, counting_captures).events["captured"] == count


def counting_connections(trial: TrialConfig, properties: Any) -> Lockstep:
    """Build a lockstep whose outcomes count the connections that CUDA would be begun with."""
    lockstep = built(trial, properties)

    def counted(*_: Any, **__: Any) -> Outcome:
        count = int(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "0"))
        return replace(clean(), events=Counter(connections=count))

    lockstep.play = counted  # type: ignore[method-assign]
    return lockstep


@pytest.mark.parametrize(
    ("trial", "said", "count"),
    [(LAZY, None, 1), (replace(LAZY, rows=15), "3", 3), (replace(LAZY, overlap=True), None, 0)],
)
def test_a_fresh_process_has_one_connection_unless_streams_run_beside_each_other(
    trial: TrialConfig, said: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its environment says how many."""
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if said is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", said)
    outcome = play_fresh(playing(DRAWN, trial=trial), counting_connections)
    assert outcome.events["connections"] == count


def test_a_playing_that_was_begun_before_gives_what_it_gives_otherwise(device: str) -> None:
    """Of a bug, and of the clean build."""
    broken = TrialConfig(device=device).with_bug("req_pool_pad")
    schedule = load(CORPUS / "req_pool_pad@decode.json", Case).schedule
    for trial in (broken, broken.clean):
        asked = playing(schedule, trial=trial)
        begin_fresh(trial, asked.properties)
        outcome = play_fresh(asked)
        assert ("hermetic_replay" in outcome.violated) is (trial is broken)
        assert outcome.error is None


def test_why_a_process_ended_before_it_was_asked_is_kept() -> None:
    begin_fresh(LAZY, STEP_PROPERTIES, unbuilt)
    process = fresh._captured(unbuilt, LAZY, STEP_PROPERTIES, captures_all=False).process
    process.join(60)
    assert not process.is_alive()
    with pytest.raises(PlayingFailedError, match="nothing to build"):
        play_fresh(playing(DRAWN, trial=LAZY), unbuilt)


def test_an_error_of_ours_in_a_fresh_process_is_no_verdict() -> None:
    with pytest.raises(PlayingFailedError):
        found_by(lambda _: violating(error=ERROR))


def playing(*schedules: Schedule, trial: TrialConfig = HARMLESS) -> FreshPlaying:
    """Return what is to be played in a fresh process, judged at every step."""
    return FreshPlaying(trial, STEP_PROPERTIES, frozenset(), schedules)


def planted(place: Place, wrong: Callable[[Memory, int], bool], trial: TrialConfig) -> Any:
    """Return how a hunt ends on engines that remember, and what plays in fresh processes."""
    build = partial(keeping, place, wrong)
    play: PlayFresh = partial(play_fresh, build=build)
    result = run_task(Task(trial, 0, 40), build, play)
    return result, play


def test_what_only_other_schedules_bring_about_is_undeclared_state(tmp_path: Path) -> None:
    """Neither caught nor green, and its case shows it again with the schedules before it."""
    result, play = planted(of_a_module, after_many, HARMLESS)
    assert result.status is Status.UNDECLARED_STATE
    finding = result.finding
    assert finding is not None and finding.case.history
    assert finding.case.schedule == result.hunt_result.drawn
    assert finding.violations[-1].property == "declared_state"
    path = tmp_path / "case.json"
    write_case(finding.case, path)
    case = load(path, Case)
    again = play(playing(*case.history, case.schedule))
    assert "logits_parity" in again.violated
    assert play(playing(case.schedule)).violated == set()


def test_what_a_schedule_brings_about_by_itself_is_shrunk_to_what_does() -> None:
    """The shrinker does not shrink onto what other schedules left behind."""
    result, play = planted(of_a_runner, after_a_larger, HARMLESS)
    assert result.status is Status.AFFECTED_AFTER_ALL
    assert result.finding is not None and not result.finding.case.history
    alone = play(playing(result.finding.case.schedule))
    assert "logits_parity" in alone.violated


def end(_: object, seed: int) -> None:
    """End the process in the place of a reset."""
    raise SystemExit(seed)


def dying(trial: TrialConfig, properties: Any) -> Lockstep:
    """Build what ends its process when it plays."""
    lockstep = built(trial, properties)
    lockstep.pair.reset = partial(end, None)  # type: ignore[method-assign]
    return lockstep


def unbuilt(trial: TrialConfig, properties: Any) -> Lockstep:
    """Build nothing."""
    raise LookupError("nothing to build")


@pytest.mark.parametrize(
    ("build", "message"), [(dying, "a fresh process died"), (unbuilt, "nothing to build")]
)
def test_a_fresh_process_that_gives_no_outcome_is_a_failure(build: Any, message: str) -> None:
    with pytest.raises(PlayingFailedError, match=message):
        play_fresh(playing(DRAWN), build)


def test_a_case_with_a_history_plays_it_first_and_reads_back(tmp_path: Path) -> None:
    case = Case(TRIAL, DRAWN, None, 0, (), OTHERS)
    write_case(case, tmp_path / "case.json")
    assert load(tmp_path / "case.json", Case) == case
    assert tuple(lockstep_of(case).history) == OTHERS
    data = json.loads((tmp_path / "case.json").read_text())
    (tmp_path / "case.json").write_text(json.dumps({**data, "history": 3}))
    with pytest.raises(ValueError, match="Expected `array`, got `int`"):
        load(tmp_path / "case.json", Case)


def test_a_case_of_undeclared_state_that_shows_after_its_history_is_as_it_says() -> None:
    violations = tuple(violating("kv_parity", "declared_state").violations)
    named = Named(0, "case", Case(TRIAL, DRAWN, None, 0, violations, OTHERS))
    assert judged(named, violating("kv_parity")).as_said
    assert not judged(named, clean()).as_said


def test_a_case_of_undeclared_state_that_shows_nothing_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why with the message of the case."""
    violations = tuple(violating("declared_state").violations)
    said = "declared_state does not hold"
    write_case(Case(TRIAL, DRAWN, "kv_parity", 0, violations), tmp_path / "case.json")
    assert main(["replay", str(tmp_path / "case.json")]) == 125
    assert f"shows nothing here: {said}" in capsys.readouterr().err


IMMUTABLE = (
    str, int, float, bool, bytes, type(None), frozenset, torch.Size, torch.dtype, torch.device,
    Enum, type, ModuleType, BuiltinFunctionType, MethodDescriptorType, logging.Logger,
    torch._ops.OpOverload,
)  # fmt: skip
"""What two engines may share, as nobody can keep anything in it; and what a process has once."""

VALUES = {"ModelConfig", "AttentionShape", "PoolSizes", "StaticInput", "tuple"}
"""Frozen dataclasses that both engines have, and tuples, whose items are followed."""


def reachable(root: object) -> dict[int, object]:
    """Return every object that can be reached from one, what is immutable left out."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in found or isinstance(value, IMMUTABLE):
            continue
        found[id(value)] = value
        if isinstance(value, Tensor):
            continue
        if isinstance(value, FunctionType):
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]
            waiting += [value.__defaults__, value.__kwdefaults__, vars(value)]
        elif type(value).__name__ in VALUES - {"tuple"}:
            waiting += vars(value).values()
        else:
            waiting += gc.get_referents(value)
    return found


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_the_two_engines_share_no_python_object_but_values(engine: str, device: str) -> None:
    """The tensors they share are KV and tables."""
    lockstep = shared(device, engine)
    subject, fresh = (reachable(one) for one in captured(lockstep))
    both = [subject[key] for key in subject.keys() & fresh.keys()]
    others = {type(value).__name__ for value in both if not isinstance(value, Tensor)}
    assert others <= VALUES
    known = reachable(lockstep.pair.graph_pools)
    assert all(id(value) in known for value in both if isinstance(value, Tensor))
