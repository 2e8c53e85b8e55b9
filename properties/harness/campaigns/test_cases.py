"""Schedules and cases as data: what is written reads back, and what is malformed is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paritybit.harness.checks.property import Violation
from paritybit.harness.errors import UnknownNameError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import encoded, load, save
from paritybit.harness.schedules.schedule import (
    MOST_STEPS,
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Schedule,
    Verify,
)

from properties.support.harness.wild_steps import LARGEST, WILD, WILD_STEPS

CASE = Case(
    trial=TrialConfig().with_bug("swa_pad"),
    schedule=Schedule(
        (
            *(Admit(1, 16), Admit(2, 16), Decode((0, 1))),
            *(DraftExtend((0,)), Draft((0,)), Verify((0, 1), 2), Idle(0)),
        ),
        seed=5,
    ),
    target="kv_parity",
    seed=7,
    violations=(Violation("kv_parity", 3, "a slot differs"),),
)


@given(st.builds(Schedule, st.lists(WILD_STEPS, max_size=30).map(tuple), WILD))
def test_a_schedule_reads_back_from_its_json_text(schedule: Schedule) -> None:
    assert msgspec.json.decode(encoded(schedule), type=Schedule) == schedule


def test_a_case_reads_back_and_is_written_again_byte_for_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    save(CASE, first)
    assert load(first, Case) == CASE
    save(load(first, Case), second)
    assert second.read_bytes() == first.read_bytes()


def ending_with(step: Any) -> dict[str, Any]:
    """Return a schedule that ends with a step, as JSON data."""
    return {"seed": 0, "steps": [{"step": "idle", "pick": 0}, step]}


MALFORMED: dict[str, tuple[str, Any]] = {
    "an earlier version": ("version", 3),
    "an extra key": ("extra", 1),
    "a seed that is a fraction": ("seed", 1.5),
    "a violation of no property": ("violations", [{"step": 0}]),
    "a bug without its scheme": ("trial.scheme", "memo"),
    "a bug that the runner cannot have": ("trial.runner", "eagle_draft"),
    "a bug twice": ("trial.bugs", ["swa_pad", "swa_pad"]),
    "bugs out of order": ("trial.bugs", ["swa_int64", "swa_pad"]),
    "bugs of different schemes": ("trial.bugs", ["swa_pad", "loc_memo_capture"]),
    "rows beyond all memory": ("trial.rows", LARGEST),
    "no page size": ("trial.page_size", 0),
    "slots that are no whole pages": ("trial.page_size", 7),
    "no buckets": ("trial.buckets", []),
    "an empty bucket": ("trial.buckets", [0, 2]),
    "a schedule's seed below zero": ("schedule.seed", -1),
    "a step of no known kind": ("schedule", ending_with({"step": "sleep"})),
    "a step that lacks a number": ("schedule", ending_with({"step": "admit", "prompt": 1})),
    "a pick that is a truth value": ("schedule", ending_with({"step": "finish", "pick": True})),
    "a pick out of range": ("schedule", ending_with({"step": "finish", "pick": 2**31})),
    "too many steps": (
        "schedule",
        {"seed": 0, "steps": [{"step": "idle", "pick": 0}] * (MOST_STEPS + 1)},
    ),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_a_malformed_case_is_refused_in_one_sentence(message: str, tmp_path: Path) -> None:
    path, value = MALFORMED[message]
    data = json.loads(encoded(CASE))
    *above, key = path.split(".")
    part = data[above[0]] if above else data
    part[key] = value
    refuse(tmp_path, json.dumps(data))


@pytest.mark.parametrize(
    "text",
    ["", "step 3 differs\n", encoded(CASE)[:200], 2 * encoded(CASE), "[]", "[" * 60 + "]" * 60],
)
def test_a_file_that_is_no_case_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    refuse(tmp_path, text)


def refuse(folder: Path, text: str) -> None:
    """Fail unless a text is refused as a case, in one line."""
    path = folder / "case.json"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load(path, Case)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, UnknownNameError)
