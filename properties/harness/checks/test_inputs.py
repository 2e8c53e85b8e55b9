"""live_inputs on static inputs made by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.static_inputs import METADATA, parts, required_room
from paritybit.harness.checks.step_properties.live_inputs import judge
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Decode, Schedule
from paritybit.reference.batch import Mode
from paritybit.reference.config import Role
from paritybit.subjects.contracts import Policy
from paritybit.subjects.runners import RUNNERS

from properties.support.harness.faults import padding_filled_with
from properties.support.harness.observations import BUCKET, idle, observation
from properties.support.harness.planting import SCHEDULE, play


@pytest.mark.parametrize("make", [observation, idle])
@pytest.mark.parametrize("mode", Mode)
def test_the_first_and_last_element_of_each_part_are_named_when_wrong(
    mode: Mode, make: Callable[[Mode], Observation]
) -> None:
    judged = [(part.name, part.live) for part in parts(make(mode))]
    assert judged
    for number, (name, live) in enumerate(judged):
        for corner in (0, -1):
            spoiled = make(mode)
            held = list(parts(spoiled))[number].current
            if not held.numel():
                continue
            index = (corner,) * held.dim()
            held[index] += 1
            found = judge(spoiled)
            assert found is not None
            assert (found[1]["input"], found[1]["live"]) == (name, live)
            assert f"{name}[" in found[0]


def test_a_tail_that_padding_keeps_and_a_buffer_beyond_its_bucket_may_have_any_value() -> None:
    right = observation()
    right.static["input_ids"][2:] = 77
    right.static["req_pool_indices"][BUCKET:] = 3
    assert judge(right) is None


@pytest.mark.parametrize(("name", "dtype"), [("seq_lens", torch.int64), ("key_begin", torch.int64)])
def test_a_wrong_dtype_is_named_though_every_value_is_right(name: str, dtype: torch.dtype) -> None:
    right = observation()
    lists = {"key_begin": torch.zeros(4096, dtype=torch.int32)}
    right = replace(right, static={**right.static, **lists})
    assert judge(right) is None
    found = judge(replace(right, static={**right.static, name: right.static[name].to(dtype)}))
    assert found is not None
    assert found[0] == f"decode: static buffer {name} is {dtype}; the engine needs torch.int32"


@pytest.mark.parametrize("mode", Mode)
def test_a_buffer_that_is_too_small_for_the_longest_requests_is_named(mode: Mode) -> None:
    """It is short by one element, although this batch fits."""
    right = observation(mode)
    config = right.layout.configs[Role.TARGET]
    for name, needed in required_room(mode, BUCKET, config).items():
        buffer = torch.zeros(needed, dtype=METADATA[name])
        assert judge(replace(right, static={**right.static, name: buffer})) is None
        found = judge(replace(right, static={**right.static, name: buffer[:-1]}))
        assert found is not None
        assert found[0].endswith(
            f"static buffer {name} has room for {needed - 1} elements; a bucket of {BUCKET} can "
            f"need {needed}"
        )


@pytest.mark.parametrize("runner", ["decode", "target_verify", "eagle_draft", "frozen_kv_mtp"])
def test_padding_with_a_wrong_row_is_detected_although_the_fresh_engine_agrees(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 1 instead of 0."""
    fault = padding_filled_with("req_pool_indices", 1)
    _, outcome = play(device, runner, fault, monkeypatch, tuple(CHEAP_PROPERTIES))
    assert outcome.violated == {"read_frame", "live_inputs"}


def test_a_wrong_policy_in_a_contract_is_detected(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subject, the fresh engine and the harness all follow that contract."""
    rows = tuple(
        replace(row, policy=Policy.KEEP) if row.name == "out_cache_loc" else row
        for row in RUNNERS["decode"].rows
    )
    monkeypatch.setattr(RUNNERS["decode"], "rows", rows)
    trial = TrialConfig("decode", device=device, buckets=(2, 4), token_buckets=(4, 12))
    steps = *SCHEDULE.steps[:3], *[Decode((0, 1, 2))] * 3, *SCHEDULE.steps[3:]
    outcome = SchedulePlayer(trial).play(Schedule(steps, SCHEDULE.seed))
    assert outcome.error is None
    assert {"live_inputs", "write_frame"} <= outcome.violated
