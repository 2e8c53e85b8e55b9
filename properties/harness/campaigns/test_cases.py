"""Schedules and cases as data: what is written reads back, and what is malformed is refused.

Knows nothing of verdicts: schedules are played through a world alone, with no graph.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paritybit.harness.checks.property import Violation
from paritybit.harness.errors import UnknownNameError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.records.case import MOST_STEPS, Case
from paritybit.harness.records.codec import encoded, load, save
from paritybit.harness.schedules.boundaries import Ground
from paritybit.harness.schedules.buckets import BUCKETS, TOKEN_BUCKETS
from paritybit.harness.schedules.generate import schedules
from paritybit.harness.schedules.schedule import (
    REPEAT_LIMIT,
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Repeat,
    Schedule,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import draft_config
from paritybit.reference.pool import KVPools, PoolSizes

from properties.support.harness.wild_steps import CONFIG, LARGEST, WILD, WILD_STEPS

Data = dict[str, Any]

ROWS = 8

CASE = Case(
    trial=TrialConfig().with_bug("swa_pad"),
    schedule=Schedule(
        (
            Admit(1, 16),
            Admit(2, 16),
            Decode((0, 1)),
            DraftExtend((0,)),
            Draft((0,)),
            Verify((0, 1), 2),
            Idle(0),
        ),
        seed=5,
    ),
    target="kv_parity",
    seed=7,
    violations=(Violation("kv_parity", 3, "a slot differs"),),
)

WILD_SCHEDULES = st.builds(Schedule, st.lists(WILD_STEPS, max_size=30).map(tuple), WILD)


@given(
    st.one_of(
        schedules(Ground(CONFIG, BUCKETS, TOKEN_BUCKETS, frozenset(Mode), Mode.DECODE)),
        WILD_SCHEDULES,
    )
)
def test_a_schedule_reads_back_from_its_json_text(schedule: Schedule) -> None:
    assert msgspec.json.decode(encoded(schedule), type=Schedule) == schedule


def test_a_case_reads_back_and_is_written_again_byte_for_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    save(CASE, first)
    assert load(first, Case) == CASE
    save(load(first, Case), second)
    assert second.read_bytes() == first.read_bytes()


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
    "an earlier version": set_to("version", value=3),
    "a later version": set_to("version", value=5),
    "a version that is a truth value": set_to("version", value=True),
    "an extra key": set_to("extra", value=1),
    "no seed": without("seed"),
    "a seed that is a fraction": set_to("seed", value=1.5),
    "a goal that is a number": set_to("target", value=3),
    "violations that are a number": set_to("violations", value=3),
    "a violation of no property": set_to("violations", value=[{"step": 0}]),
    "a trial that is a list": set_to("trial", value=[]),
    "a bug without its scheme": set_to("trial", "scheme", value="memo"),
    "a bug that the runner cannot have": set_to("trial", "runner", value="eagle_draft"),
    "bugs that are one name": set_to("trial", "bugs", value="swa_pad"),
    "a bug twice": set_to("trial", "bugs", value=["swa_pad", "swa_pad"]),
    "bugs out of order": set_to("trial", "bugs", value=["swa_int64", "swa_pad"]),
    "bugs of different schemes": set_to("trial", "bugs", value=["swa_pad", "loc_memo_capture"]),
    "rows beyond all memory": set_to("trial", "rows", value=LARGEST),
    "no page size": set_to("trial", "page_size", value=0),
    "slots that are no whole pages": set_to("trial", "page_size", value=7),
    "no buckets": set_to("trial", "buckets", value=[]),
    "an empty bucket": set_to("trial", "buckets", value=[0, 2]),
    "a bucket beyond all memory": set_to("trial", "buckets", value=[LARGEST]),
    "a schedule that is a list": set_to("schedule", value=[]),
    "a schedule's seed below zero": set_to("schedule", "seed", value=-1),
    "a schedule's seed out of range": set_to("schedule", "seed", value=2**31),
    "a step that is text": ends_with("idle"),
    "a step without its kind": ends_with({"pick": 0}),
    "a step of no known kind": ends_with({"step": "sleep"}),
    "a step whose kind is a list": ends_with({"step": []}),
    "a step that lacks a number": ends_with({"step": "admit", "prompt": 1}),
    "a step with an extra number": ends_with({"step": "idle", "pick": 0, "count": 1}),
    "a verify that accepts nothing": ends_with({"step": "verify", "picks": [0]}),
    "a verify that accepts less than no draft": ends_with(
        {"step": "verify", "picks": [0], "accept": -1}
    ),
    "a pick below zero": ends_with({"step": "finish", "pick": -1}),
    "a pick that is a truth value": ends_with({"step": "finish", "pick": True}),
    "a pick out of range": ends_with({"step": "finish", "pick": 2**31}),
    "picks within picks": ends_with({"step": "decode", "picks": [[0]]}),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_a_malformed_case_is_refused_in_one_sentence(message: str, tmp_path: Path) -> None:
    data = json.loads(encoded(CASE))
    MALFORMED[message](data)
    assert not isinstance(refused(tmp_path, json.dumps(data)), UnknownNameError)


NOT_JSON = {
    "nothing": "",
    "no JSON": "step 3 differs\n",
    "JSON cut short": encoded(CASE)[:200],
    "two documents": 2 * encoded(CASE),
    "a list": "[]",
    "a number": "1",
    "a list within lists": "[" * 60 + "]" * 60,
}


@pytest.mark.parametrize("message", NOT_JSON)
def test_a_file_that_is_no_case_is_refused_in_one_sentence(message: str, tmp_path: Path) -> None:
    assert not isinstance(refused(tmp_path, NOT_JSON[message]), UnknownNameError)


STEP = {"step": "idle", "pick": 0}


@pytest.mark.parametrize("more", [0, 1])
def test_a_case_has_a_bound_on_its_steps_those_of_its_history_included(
    more: int, tmp_path: Path
) -> None:
    data = json.loads(encoded(CASE))
    data["history"] = [{"seed": 0, "steps": [STEP] * (MOST_STEPS - 10 + more)}]
    data["schedule"]["steps"] = [STEP] * 10
    if more:
        assert f"at most {MOST_STEPS} steps" in str(refused(tmp_path, json.dumps(data)))
    else:
        (tmp_path / "case.json").write_text(json.dumps(data))
        assert len(load(tmp_path / "case.json", Case).schedule.steps) == 10


def refused(folder: Path, text: str) -> ValueError:
    """Return the error that tells, in one line, why `text` is no case."""
    path = folder / "case.json"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load(path, Case)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module", params=[1, 4], ids=["page1", "page4"])
def world(request: pytest.FixtureRequest) -> Scheduler:
    """A world without a graph, on a CPU."""
    return lonely_world(PoolSizes(page_size=request.param), frozenset(Mode) - {Mode.FROZEN_DRAFT})


def lonely_world(sizes: PoolSizes, modes: frozenset[Mode]) -> Scheduler:
    """Return a world that nothing runs forwards for."""
    draft = draft_config(CONFIG)
    pools = KVPools(CONFIG, draft, sizes, torch.float32, torch.device("cpu"))
    return Scheduler(CONFIG, pools, ROWS, modes)


def test_a_repeat_without_end_ends() -> None:
    schedule = Schedule((Idle(0), Repeat(LARGEST), Repeat(1)))
    places = [place for place, _ in schedule.flat()]
    assert places == [0, *[1] * REPEAT_LIMIT, 2]
