"""Wide numbers: long contexts and high slot numbers show whatever narrows them, at little cost."""

import json
from collections.abc import Callable
from functools import cache

import pytest
import torch
from paritybit.harness.campaigns.locksteps import Locksteps, explained_small
from paritybit.harness.campaigns.regress import RunConfig, clean_tasks
from paritybit.harness.campaigns.task import Task
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import DIVERGING_PROPERTIES, PROPERTIES
from paritybit.harness.explain.report import observe
from paritybit.harness.lockstep.config import TrialConfig, trial_from_json
from paritybit.harness.lockstep.pair import subject_alone
from paritybit.harness.schedules.coverage import BOUNDS
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.reference.config import PRESETS, Kind
from paritybit.reference.ops import Ops
from paritybit.reference.pool import KVPools, PoolSizes
from paritybit.subjects.access import ListedKV
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.index_dtype import real_row
from paritybit.subjects.bugs.switching import broken_subject
from paritybit.subjects.engine import Subject
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import Keys
from torch import Tensor

from properties.support.harness.planting import WITHOUT_REPLAYS


class NarrowSlots(ListedKV):
    """Reads by slot numbers of 16 bits."""

    def keys_of(self, kind: Kind) -> Keys:
        """Return the keys that are really read."""
        keys = super().keys_of(kind)
        return Keys(keys.begin, keys.end, keys.slots & 0xFFFF, keys.mask_start)


class NarrowStore(Ops):
    """Stores at slot numbers of 16 bits."""

    def store_kv(
        self, cache: Tensor, loc: Tensor, loc_dtype: torch.dtype, key: Tensor, value: Tensor
    ) -> None:
        """Store at the slots that are really reached."""
        slots = loc.view(loc_dtype)[: key.shape[0]].long() & 0xFFFF
        super().store_kv(cache, slots, torch.int64, key, value)


class OneBlock(ListedKV):
    """Reads one block of 512 keys of each row, and no other."""

    def keys_of(self, kind: Kind) -> Keys:
        """Return the keys that are really read."""
        keys = super().keys_of(kind)
        end = torch.minimum(keys.end, keys.begin + 512)
        return Keys(keys.begin, end, keys.slots, keys.mask_start)


class NarrowPositions(Ops):
    """Turns heads by positions in bfloat16."""

    def rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        """Return the turn of the positions that are really used."""
        narrow = positions.to(torch.bfloat16).to(positions.dtype)
        return super().rotary(narrow, section, frequency)


class OffsetsIn32Bits(ListedKV):
    """Multiplies a slot number by what a slot has in a real model in 32 bits."""

    def keys_of(self, kind: Kind) -> Keys:
        """Return the keys that are really read."""
        keys, stride = super().keys_of(kind), real_row(self.model.config)
        offset = keys.slots.to(torch.int32) * stride  # It wraps here.
        slots = (offset // stride).clamp(min=0).to(keys.slots.dtype)
        return Keys(keys.begin, keys.end, slots, keys.mask_start)


class ReadsOneKeyLess(ListedKV):
    """Leaves out the first key of each row, whatever numbers are."""

    def keys_of(self, kind: Kind) -> Keys:
        """Return the keys that are really read."""
        keys = super().keys_of(kind)
        return Keys(keys.begin + 1, keys.end, keys.slots, keys.mask_start)


NARROW: dict[str, dict[Part, type]] = {
    "a slot read in 16 bits": {Part.ACCESS: NarrowSlots},
    "a slot stored in 16 bits": {Part.OPS: NarrowStore},
    "a block of 512 keys": {Part.ACCESS: OneBlock},
    "a position in bfloat16": {Part.OPS: NarrowPositions},
    "an index past 2^31": {Part.ACCESS: OffsetsIn32Bits},
}
"""Faults that no number of a tiny trial shows."""


@cache
def of_decode() -> Task:
    """Return the task of a default run with wide numbers and decode graphs."""
    tasks = clean_tasks(RunConfig("cpu"))
    return next(task for task in tasks if task.trial.max_context and task.trial.runner == "decode")


def broken(parts: dict[Part, type]) -> Callable[[TrialConfig], Subject]:
    """Return what is on trial with some parts that differ."""

    def subject(trial: TrialConfig) -> Subject:
        bug = Bug("narrow", "narrow", trial.scheme, "none", "none", parts=parts)
        return broken_subject([bug], trial.runner, trial.scheme)

    return subject


@pytest.mark.usefixtures("captures_when_needed")
@pytest.mark.parametrize("name", NARROW)
def test_a_default_run_finds_what_narrows_a_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the schedule of the longest context."""
    monkeypatch.setattr(TrialConfig, "subject", broken(NARROW[name]))
    task = of_decode()
    lockstep = Lockstep(task.trial, DIVERGING_PROPERTIES, engines=subject_alone)
    found = lockstep.play(task.first[0])
    assert found.error is None and found.violated, found.error


@pytest.mark.usefixtures("captures_when_needed")
def test_what_shows_with_high_slot_numbers_alone_is_explained_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what shows without them too is explained as it is there."""
    trial = of_decode().trial
    schedule = Schedule((Admit(3, 3), Decode((0,))))
    found = []
    faults: tuple[type, ...] = (NarrowSlots, ReadsOneKeyLess)
    for fault in faults:
        monkeypatch.setattr(TrialConfig, "subject", broken({Part.ACCESS: fault}))
        locksteps = Locksteps()
        locksteps(trial).watch(PROPERTIES)
        outcome, timeline = observe(locksteps(trial), schedule)
        explained = explained_small(locksteps, trial, schedule, outcome, timeline, None)
        assert explained.error is None and explained.explanation is not None
        found.append(explained.explanation)
    narrow, other = found
    assert narrow.cause is not None and narrow.cause.name == "large slot numbers"
    assert other.cause is None or other.cause.name != narrow.cause.name
    assert other.proof[0].startswith("The explanation skips no slot numbers")


@pytest.mark.usefixtures("captures_when_needed")
def test_a_right_engine_is_green_and_reaches_every_bound() -> None:
    task = of_decode()
    outcome = Lockstep(task.trial, WITHOUT_REPLAYS).play(task.first[0])
    assert (outcome.error, outcome.violations) == (None, ())
    assert all(outcome.events[event] for event in BOUNDS)


def test_a_pool_that_skips_slot_numbers_stores_as_much_as_one_that_does_not() -> None:
    """Each slot is found by its number, in a place of its own."""
    config = PRESETS["gemma3"].tiny
    sizes = PoolSizes(8, 8, 4, 2, skipped=1000)
    pools, plain = (
        KVPools(config, config, one, torch.float32, torch.device("cpu"))
        for one in (sizes, PoolSizes(8, 8, 4, 2))
    )
    assert pools.storage.shape == plain.storage.shape
    for role, pool in pools.pools.items():
        pools.storage.zero_()
        for layer, kind in enumerate(config.layers):
            pool.cache(layer)[:, 1004:1012] = layer + 1
            stored = pools.layout.arena_of(pools.storage, role, kind)
            of_kind = config.layers_of(kind).index(layer)
            assert bool((stored[of_kind, :, 4:] == layer + 1).all())
        assert {sizes.number(place) for place in range(4, 12)} == set(range(1004, 1012))
    slots = torch.tensor([0, 3, 500, 1004, 1011])
    assert sizes.places(slots).tolist() == [0, 3, 0, 4, 11]
    assert sizes.numbers(torch.tensor([0, 3, 4, 11])).tolist() == [0, 3, 1004, 1011]


def test_a_trial_with_wide_numbers_reads_back_and_an_older_one_has_none() -> None:
    trial = of_decode().trial
    assert trial_from_json(json.loads(json.dumps(trial.to_json()))) == trial
    assert {"max_context", "skipped_slots"} <= trial.to_json().keys()
    assert not {"max_context", "skipped_slots"} & TrialConfig().to_json().keys()
    with pytest.raises(ValueError, match="need the device cpu"):
        TrialConfig(device="cuda", skipped_slots=4)
    with pytest.raises(ValueError, match="multiple of the page size"):
        TrialConfig(page_size=4, skipped_slots=2)
