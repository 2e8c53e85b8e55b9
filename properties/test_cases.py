"""Schedules and cases as data: what is written reads back, and what is malformed is refused.

Knows nothing of verdicts: schedules are played through a world alone, with no graph.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.case import Case, dump_json, load_case, write_case
from harness.generate import schedules
from harness.hunt import hunt
from harness.lockstep import Lockstep
from harness.schedule import (
    REPEAT_LIMIT,
    Admit,
    Decode,
    Evict,
    Extend,
    Finish,
    Idle,
    Repeat,
    Resume,
    Retract,
    Schedule,
    Step,
    from_json,
    to_json,
)
from harness.trial import Trial, UnknownNameError
from harness.world import World
from reference.batch import Mode
from reference.config import PRESETS
from reference.pool import HybridKVPool, PoolSizes

Data = dict[str, Any]

CONFIG = PRESETS["gpt_oss"].tiny
ROWS = 8
LARGEST = 2**31 - 1

CASE = Case(
    trial=Trial().with_bug("swa_pad"),
    schedule=Schedule((Admit(1, 16), Admit(2, 16), Decode((0, 1)), Decode((0,)), Idle()), seed=5),
    sought="kv_parity",
    seed=7,
    violations=({"property": "kv_parity", "step": 3, "told": "a slot differs", "where": {}},),
)

WILD = st.integers(0, LARGEST)
WILD_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Admit, WILD, WILD),
    st.builds(Admit, st.integers(0, 12), st.integers(0, 12)),
    st.builds(Extend, WILD, WILD),
    st.builds(Decode, st.lists(WILD, max_size=12).map(tuple)),
    st.builds(Finish, WILD),
    st.builds(Evict, WILD),
    st.builds(Retract, WILD),
    st.builds(Resume, WILD),
    st.builds(Idle),
    st.builds(Repeat, st.one_of(st.integers(0, 9), WILD)),
)
WILD_SCHEDULES = st.builds(Schedule, st.lists(WILD_STEPS, max_size=30).map(tuple), WILD)
LONG_SCHEDULES = st.builds(
    Schedule, st.lists(WILD_STEPS, min_size=15, max_size=40).map(tuple), WILD
)


@given(st.one_of(schedules(CONFIG, ROWS), WILD_SCHEDULES))
def test_a_schedule_reads_back_from_its_json_text(schedule: Schedule) -> None:
    assert from_json(json.loads(dump_json(to_json(schedule)))) == schedule


def test_a_case_reads_back_and_is_written_again_byte_for_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_case(CASE, first)
    assert load_case(first) == CASE
    write_case(load_case(first), second)
    assert second.read_bytes() == first.read_bytes()


def test_a_case_without_bug_or_goal_reads_back(tmp_path: Path) -> None:
    case = Case(Trial(page_size=4), Schedule(()), None, -1, ())
    write_case(case, tmp_path / "case.json")
    assert load_case(tmp_path / "case.json") == case


def set_to(*path: str, value: Any) -> Callable[[Data], None]:
    """Return a change that sets the entry at `path`."""

    def change(data: Data) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def without(*path: str) -> Callable[[Data], None]:
    """Return a change that takes the entry at `path` away."""

    def change(data: Data) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


def ends_with(step: Any) -> Callable[[Data], None]:
    """Return a change that adds a step."""
    return lambda data: data["schedule"]["steps"].append(step)


MALFORMED: dict[str, Callable[[Data], None]] = {
    "no format": without("format"),
    "a foreign format": set_to("format", value="paritybit-run"),
    "a later version": set_to("version", value=2),
    "a version that is a truth value": set_to("version", value=True),
    "a version that is text": set_to("version", value="1"),
    "an extra key": set_to("extra", value=1),
    "no seed": without("seed"),
    "a seed that is a fraction": set_to("seed", value=1.5),
    "a seed that is nothing": set_to("seed", value=None),
    "a goal that is a number": set_to("sought", value=3),
    "violations that are a number": set_to("violations", value=3),
    "violations that are nothing": set_to("violations", value=None),
    "violations that are numbers": set_to("violations", value=[1]),
    "a trial that is a list": set_to("trial", value=[]),
    "a trial without its era": without("trial", "era"),
    "a trial with an extra key": set_to("trial", "extra", value=1),
    "a runner that is a list": set_to("trial", "runner", value=["decode"]),
    "an era that is no text": set_to("trial", "era", value=2),
    "a bug out of its era": set_to("trial", "era", value="memo"),
    "a bug that is a number": set_to("trial", "bug", value=0),
    "rows that are a truth value": set_to("trial", "rows", value=True),
    "rows below zero": set_to("trial", "rows", value=-1),
    "rows beyond all memory": set_to("trial", "rows", value=LARGEST),
    "no page size": set_to("trial", "page_size", value=0),
    "slots that are no whole pages": set_to("trial", "page_size", value=7),
    "slots that are a fraction": set_to("trial", "full_slots", value=80.0),
    "slots beyond all memory": set_to("trial", "full_slots", value=LARGEST),
    "no buckets": set_to("trial", "buckets", value=[]),
    "an empty bucket": set_to("trial", "buckets", value=[0, 2]),
    "a bucket beyond all memory": set_to("trial", "buckets", value=[LARGEST]),
    "a bucket that is text": set_to("trial", "buckets", value=[2, "4"]),
    "a schedule that is a list": set_to("schedule", value=[]),
    "a schedule without its seed": without("schedule", "seed"),
    "a schedule's seed below zero": set_to("schedule", "seed", value=-1),
    "a schedule's seed out of range": set_to("schedule", "seed", value=2**31),
    "steps that are an object": set_to("schedule", "steps", value={}),
    "a step that is text": ends_with("idle"),
    "a step without its kind": ends_with({"pick": 0}),
    "a step of no known kind": ends_with({"step": "sleep"}),
    "a step whose kind is a list": ends_with({"step": []}),
    "a step whose kind is an object": ends_with({"step": {}}),
    "a step that lacks a number": ends_with({"step": "admit", "prompt": 1}),
    "a step with an extra number": ends_with({"step": "idle", "pick": 0}),
    "a pick below zero": ends_with({"step": "finish", "pick": -1}),
    "a pick that is a truth value": ends_with({"step": "finish", "pick": True}),
    "a pick out of range": ends_with({"step": "finish", "pick": 2**31}),
    "picks that are one number": ends_with({"step": "decode", "picks": 0}),
    "picks that are text": ends_with({"step": "decode", "picks": "01"}),
    "picks within picks": ends_with({"step": "decode", "picks": [[0]]}),
    "a pick that is a list": ends_with({"step": "finish", "pick": [0]}),
}


@pytest.mark.parametrize("told", MALFORMED)
def test_a_malformed_case_is_refused_in_one_sentence(told: str, tmp_path: Path) -> None:
    data = deepcopy(CASE.to_json())
    data = json.loads(dump_json(data))
    MALFORMED[told](data)
    assert not isinstance(refused(tmp_path, dump_json(data)), UnknownNameError)


NOT_JSON = {
    "nothing": "",
    "no JSON": "step 3 differs\n",
    "JSON cut short": dump_json(CASE.to_json())[:200],
    "two documents": 2 * dump_json(CASE.to_json()),
    "a list": "[]",
    "a number": "1",
    "a list within lists without end": "[" * 100_000,
    "a number without end": '{"format": "paritybit-case", "version": 1' + "0" * 5_000 + "}",
}


@pytest.mark.parametrize("told", NOT_JSON)
def test_a_file_that_is_no_case_is_refused_in_one_sentence(told: str, tmp_path: Path) -> None:
    assert not isinstance(refused(tmp_path, NOT_JSON[told]), UnknownNameError)


UNKNOWN = {
    "runner": set_to("trial", "runner", value="prefill"),
    "preset": set_to("trial", "preset", value="gpt9"),
    "dtype": set_to("trial", "dtype", value="float8"),
    "device": set_to("trial", "device", value="tpu"),
    "era": set_to("trial", "era", value="registry"),
    "bug": set_to("trial", "bug", value="swa_pud"),
    "property": set_to("sought", value="parity"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_name_that_this_build_lacks_is_told_with_the_valid_ones(
    what: str, tmp_path: Path
) -> None:
    data = json.loads(dump_json(CASE.to_json()))
    UNKNOWN[what](data)
    error = refused(tmp_path, dump_json(data))
    assert isinstance(error, UnknownNameError)
    assert f"unknown {what} " in str(error)
    assert "; valid: " in str(error)


def refused(folder: Path, text: str) -> ValueError:
    """Return the error that tells, in one line, why `text` is no case."""
    path = folder / "case.json"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load_case(path)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module", params=[1, 4], ids=["page1", "page4"])
def world(request: pytest.FixtureRequest) -> World:
    """A world without a graph, on a CPU."""
    sizes = PoolSizes(page_size=request.param)
    pool = HybridKVPool(CONFIG, sizes, torch.float32, torch.device("cpu"))
    return World(CONFIG, pool, ROWS)


@settings(max_examples=200)
@given(schedule=st.one_of(WILD_SCHEDULES, LONG_SCHEDULES))
def test_any_list_of_steps_is_a_valid_schedule(world: World, schedule: Schedule) -> None:
    play_alone(world, schedule)
    owned = [slot for each in world.running for slot in world.owned(each)[0]]
    assert len(owned) == len(set(owned))
    assert len(world.running) <= world.pool.sizes.rows


def play_alone(world: World, schedule: Schedule) -> int:
    """Plan every step, sampling token 0 for it; return how many asked for a forward."""
    forwards = 0
    world.reset(schedule.seed)
    for _, step in schedule.flat():
        work = world.plan(step)
        if work is None:
            continue
        forwards += 1
        if work.batch is not None:
            assert 0 < len(work.batch.spans) <= ROWS
            rows = 1 if work.batch.mode is Mode.EXTEND else work.batch.raw_bs
            world.sample(work.batch, torch.zeros(rows, CONFIG.vocab))
    return forwards


def test_a_shorter_list_of_steps_is_still_a_schedule(world: World) -> None:
    """Every step of a full life, each one left out in turn."""
    steps: tuple[Step, ...] = (
        Admit(11, 4),
        Extend(0, 4),
        Extend(0, 4),
        Admit(1, 1),
        Decode((0, 1)),
        Repeat(2),
        Evict(0),
        Retract(0),
        Resume(0),
        Idle(),
        Finish(1),
    )
    for place in range(len(steps)):
        assert play_alone(world, Schedule(steps[:place] + steps[place + 1 :])) > 0


def test_a_repeat_without_end_ends() -> None:
    schedule = Schedule((Idle(), Repeat(LARGEST), Repeat(1)))
    places = [place for place, _ in schedule.flat()]
    assert places == [0, *[1] * REPEAT_LIMIT, 2]


def test_a_repeat_of_nothing_is_nothing() -> None:
    assert list(Schedule((Repeat(LARGEST),)).flat()) == []


def test_the_same_seed_gives_the_same_case_byte_for_byte() -> None:
    trial = Trial().with_bug("swa_int64")

    def text() -> str:
        catch = hunt(Lockstep(trial), "index_contract", 0, 20)
        assert catch.schedule is not None
        return dump_json(Case(trial, catch.schedule, "index_contract", 0, ()).to_json())

    assert text() == text()
