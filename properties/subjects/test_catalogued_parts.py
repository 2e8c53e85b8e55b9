"""Bugs of the catalogue harm what their threads say, where they say, and nothing before it."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Finish, Repeat, Schedule, Verify
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.caches import MOST_SCALARS
from paritybit.subjects.bugs.captured_state import (
    LONGEST_AT_CAPTURE,
    KeepsKernel,
    PrefillsBeforeVerify,
)
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.index_dtype import reached
from paritybit.subjects.bugs.workspace import EagerWorkspace, GrowingWorkspace, SplitLogits
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme

LONG, SHORT = 99, 3

DECODES = Schedule((Admit(11, LONG), Admit(SHORT, LONG), Decode((0, 1)), Repeat(2)))

VERIFIES = Schedule((Admit(SHORT, LONG), Admit(11, LONG), Verify((0, 1), 1), Repeat(1)))


def violated(bug: str, device: str, *schedules: Schedule, **settings: Any) -> list[frozenset[str]]:
    """Return what schedules violate with a bug, on few captured sizes."""
    sizes: Mapping[str, Any] = {"buckets": (4,), "token_buckets": (12,), "device": device}
    lockstep = Lockstep(TrialConfig(**{**sizes, **settings}).with_bug(bug))
    outcomes = [lockstep.play(schedule) for schedule in schedules]
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    return [outcome.violated for outcome in outcomes]


GREEN: frozenset[str] = frozenset()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what adds a bug of some parts to the catalogue, and says what it is called."""

    def plant(parts: Mapping[Part, type], mode: Mode = Mode.DECODE) -> str:
        bug = Bug(
            name="planted",
            family="planted",
            scheme=LocationScheme.MEMO,
            thread="",
            mechanism="",
            parts=parts,
            modes=frozenset({mode}),
        )
        monkeypatch.setitem(BUGS, bug.name, bug)
        return bug.name

    return plant


@pytest.mark.parametrize("stride", [576, 196_608, 3_145_728])
def test_an_offset_of_32_bits_reaches_what_it_should_up_to_its_limit(stride: int) -> None:
    """Beyond it another slot of the pool is reached, or the same one of a pool that is round."""
    slots = torch.arange(81)
    found = reached(slots, stride, 81)
    assert found[:41].tolist() == slots[:41].tolist()
    assert (found[41:] != slots[41:]).all()
    assert 0 <= int(found.min()) <= int(found.max()) <= 80


@pytest.mark.parametrize(
    "parts",
    [
        {Part.RUNNER: GrowingWorkspace},
        {Part.RUNNER: SplitLogits, Part.ENGINE: EagerWorkspace},
    ],
    ids=["grows for graphs alone", "is large enough"],
)
def test_a_workspace_that_is_never_anothers_is_right(
    planted: Any, parts: Mapping[Part, type], device: str
) -> None:
    assert violated(planted(parts), device, DECODES, buckets=(2, 4)) == [GREEN]


@pytest.mark.parametrize(
    "parts",
    [{Part.ENGINE: PrefillsBeforeVerify}, {Part.RUNNER: KeepsKernel}],
    ids=["order", "flag"],
)
def test_neither_the_order_of_captures_nor_the_flag_alone_does_harm(
    planted: Any, parts: Mapping[Part, type], device: str
) -> None:
    name = planted(parts, Mode.TARGET_VERIFY)
    assert violated(name, device, VERIFIES, runner="target_verify") == [GREEN]


def test_a_scalar_is_right_until_its_entry_is_evicted(device: str) -> None:
    """One entry is that of the captured size; a prefill of it would be its last use."""

    def prefills(lengths: Iterable[int]) -> Schedule:
        steps = ((Admit(length, LONG), Finish(0)) for length in (*lengths, 12))
        return Schedule(tuple(step for part in steps for step in part))

    few, many = prefills(range(1, MOST_SCALARS)), prefills(range(1, MOST_SCALARS + 1))
    before, after = violated("scalar_evicted", device, few, many, runner="breakable")
    assert before == GREEN
    assert "logits_parity" in after


def test_a_descriptor_is_right_until_as_many_tokens_come_again(device: str) -> None:
    other, again = (Schedule((Admit(5, LONG), Admit(length, LONG))) for length in (6, 5))
    before, after = violated("descriptor_by_address", device, other, again, runner="breakable")
    assert before == GREEN
    assert "logits_parity" in after


@pytest.mark.parametrize(
    ("bug", "most"),
    [
        ("longest_key_count_baked", LONGEST_AT_CAPTURE),
        ("window_metadata_absent", PRESETS[TrialConfig().preset].tiny.window),
    ],
)
def test_a_short_context_is_right(bug: str, most: int, device: str) -> None:
    """With `most` keys, that of the decoded token among them; with one more it is red."""
    short, long = (
        Schedule((Admit(keys - 1, LONG), Admit(1, LONG), Decode((0,)))) for keys in (most, most + 1)
    )
    before, after = violated(bug, device, short, long)
    assert before == GREEN
    assert "logits_parity" in after
