"""Shapes other than tiny: what they are, what they need, and pools of which no copy is kept."""

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from paritybit.harness.campaigns import hunt as hunting
from paritybit.harness.campaigns.fresh import FreshPlaying
from paritybit.harness.campaigns.locksteps import Locksteps
from paritybit.harness.campaigns.task import Status, Task, run_task
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.step_properties import read_frame
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.checks.twins import WORLDS, first_slot_outside, twins_wrote_outside
from paritybit.harness.cli.exit_codes import CANNOT_RUN
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.lockstep import config as settings
from paritybit.harness.lockstep.config import TrialConfig, trial_from_json
from paritybit.harness.lockstep.scale import memory
from paritybit.harness.lockstep.scale.comparison import (
    Difference,
    compare,
    compared_on_device,
    digests,
)
from paritybit.harness.lockstep.scale.kept import Ran, Twins
from paritybit.harness.lockstep.scale.memory import most_processes, needs_of, require_memory
from paritybit.harness.lockstep.scale.shapes import trial_of
from paritybit.harness.records.case import Case, case_of, dump_json, load_case
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import PRESETS, Kind, Role, Shape, draft_config
from paritybit.reference.pool import KVPools, PoolSizes
from paritybit.reference.state_pool import GrowingRows, Section
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from paritybit.__main__ import main
from properties.support.harness.comparisons import check_comparisons

CORPUS = Path("properties/corpus")


def real(preset: str, device: str = "cpu") -> TrialConfig:
    """Return a trial of a real model."""
    return trial_of(Shape.REAL, preset, "decode", device, LocationScheme.PRESET, 0)


def test_a_case_says_its_shape_unless_it_is_tiny() -> None:
    """And is read as it was written; without a shape it is tiny."""
    tiny, mid = TrialConfig(), trial_of(Shape.MID, "mimo", "decode", "cpu", LocationScheme.MEMO, 1)
    assert "shape" not in tiny.to_json() and mid.to_json()["shape"] == "mid"
    for trial in (tiny, mid, real("gemma3")):
        case = Case(trial, Schedule(()), None, 0, ())
        assert case_of(json.loads(dump_json(case.to_json())), "it") == case
    wide = Case(replace(mid, full_slots=2**20), Schedule(()), None, 0, ())
    with pytest.raises(MalformedError, match="at most 65536 slots"):
        case_of(json.loads(dump_json(wide.to_json())), "it")
    small = replace(mid, buckets=(1,), token_buckets=(1,))
    assert Lockstep(small).pair.config == PRESETS["mimo"].of(Shape.MID)
    with pytest.raises(MalformedError, match="valid: tiny, mid, real"):
        trial_from_json(json.loads(json.dumps(tiny.to_json())) | {"shape": "huge"})
    with pytest.raises(MalformedError, match="pools that are small enough to copy"):
        replace(real("gemma3"), overlap=True)


def test_too_little_memory_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the need and what is there, before anything is allocated."""
    monkeypatch.setattr(memory, "free_on_host", lambda: 2**30)
    with pytest.raises(
        CannotRunError, match=r"gpt_oss at shape real needs .* KV for the eager and graph runs"
    ):
        require_memory(real("gpt_oss"))
    with pytest.raises(CannotRunError, match=r"1\.0 GiB is free"):
        Lockstep(real("mimo"))
    assert main(["regress", "--shape", "real", "--device", "cpu"]) == CANNOT_RUN
    (line,) = capsys.readouterr().err.splitlines()
    assert "GiB of host memory" in line
    monkeypatch.setattr(memory, "free_on_host", lambda: 2**40)
    with pytest.raises(CannotRunError, match="needs a GPU because"):
        require_memory(real("gpt_oss"))
    require_memory(TrialConfig())


def test_a_gpu_too_small_is_told_and_a_large_one_takes_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, KV and scratch count, and what is needed of the host."""
    trial = real("gpt_oss", "cuda")
    needed = sum(needs_of(trial).values())
    assert needed > 2 * trial.world_bytes + 2 * 2**30
    monkeypatch.setattr(memory, "free_on_host", lambda: 2**40)
    for free, count in (([needed], 1), ([2 * needed, needed], 2), ([], 1)):
        monkeypatch.setattr(memory, "free_memory", lambda free=free: free)
        assert most_processes(trial) == count
    monkeypatch.setattr(memory, "free_memory", lambda: [needed - 1])
    with pytest.raises(CannotRunError, match="of GPU memory"):
        most_processes(trial)
    monkeypatch.setattr(memory, "free_memory", lambda: [needed])
    monkeypatch.setattr(memory, "free_on_host", lambda: 2**30)
    with pytest.raises(CannotRunError, match="of host memory"):
        most_processes(trial)


def test_every_planted_difference_is_found_and_a_reserved_one_is_not(device: str) -> None:
    """By the comparison of this device: the kernel's runs interpreted in `test_ops`."""

    def found(left: Tensor, right: Tensor, marks: Tensor, shape: torch.Size) -> Tensor:
        return compare(left.view(shape), right.view(shape), marks).found

    check_comparisons(found, device)
    if device == "cuda":
        check_comparisons(compared_on_device, device)


def test_a_difference_tells_its_place_and_bits(device: str) -> None:
    one = torch.zeros((2, 2, 5, 3, 4), dtype=torch.bfloat16, device=device)
    other = one.clone()
    other[1, 0, 3, 2, 1] = -1.5
    marks = torch.zeros(5, dtype=torch.uint8, device=device)
    seen = compare(one, other, marks)
    assert seen.first() == seen.first(outside=True) == (1, 0, 3, 2, 1)
    assert seen.hex_bits(2) == ("0x0000", "0xbfc0")
    with pytest.raises(ValueError, match="do not differ"):
        compare(one, one, marks).first()


def test_places_beyond_31_bits_are_compared(device: str) -> None:
    """On a GPU over so much memory; on a CPU where a place is worked out."""
    if device == "cuda":
        slots = 2**31 // 64 + 3
        one = torch.zeros((1, 2, slots, 8, 8), dtype=torch.bfloat16, device=device)
        other = one.clone()
        other[0, 0, slots - 1, 7, 7] = other[0, 1, slots - 1, 0, 2] = 1
        seen = compare(one, other, torch.zeros(slots, dtype=torch.uint8, device=device))
        assert seen.found[:2].tolist() == [2, 2]
        assert seen.first() == (0, 0, slots - 1, 7, 7)
    shape = torch.Size((1, 2, 2**31, 8, 8))
    place = torch.Size(shape[2:]).numel() + 64 * (2**31 - 1) + 9
    found = torch.tensor([1, 1, place, place])
    seen = Difference(found, torch.zeros((2, 2), dtype=torch.int64), shape)
    assert seen.first() == (0, 1, 2**31 - 1, 1, 1)


def test_one_element_that_differs_makes_another_digest() -> None:
    rows = torch.randint(-(2**15), 2**15, (50, 33), generator=torch.Generator().manual_seed(0))
    changed = rows.clone()
    changed[torch.arange(50), torch.arange(50) % 33] ^= 1 << 14
    assert not (digests(rows) == digests(changed)).any()
    assert torch.equal(digests(rows), digests(rows.clone()))


@pytest.fixture
def uncopied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all pools count as too large to be copied."""
    monkeypatch.setattr(settings, "COPIED_BYTES", 0)
    yield


def told(outcome: Outcome) -> list[tuple[object, ...]]:
    """Return what was violated; how much differs is counted in slots, or in elements."""
    return [
        (
            found.property,
            found.step,
            found.message,
            {key: value for key, value in found.where.items() if not key.startswith("differing")},
        )
        for found in outcome.violations
    ]


def played(trial: TrialConfig, schedule: Schedule, properties: frozenset[str]) -> Outcome:
    """Return how a schedule went, which no error of ours ended."""
    outcome = Lockstep(trial, properties).play(schedule)
    assert outcome.error is None, outcome.error
    return outcome


def test_a_case_violates_the_same_where_no_copy_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Property by property, step by step and word by word, reads counted by few slots too."""
    case = load_case(CORPUS / "req_pool_pad@frozen_kv_mtp.json")
    trial = replace(case.trial, buckets=(4,), token_buckets=(12,))
    copied = played(trial, case.schedule, STEP_PROPERTIES)
    assert copied.violated
    monkeypatch.setattr(settings, "COPIED_BYTES", 0)
    monkeypatch.setattr(read_frame, "COUNTED_CELLS", 0)
    uncopied = played(trial, case.schedule, STEP_PROPERTIES)
    assert told(uncopied) == told(copied)


def test_a_hunt_over_pools_that_are_not_copied_holds_one_pair_of_them_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while a fresh process would play; it is explained over small pools, and told so."""
    case = load_case(CORPUS / "swa_pad@decode.json")
    trial = replace(case.trial, full_slots=512, swa_slots=256, buckets=(4,), token_buckets=(12,))
    monkeypatch.setattr(settings, "COPIED_BYTES", trial.world_bytes - 1)
    monkeypatch.setattr(hunting, "FEW_STEPS", 0)
    built = list[weakref.ref[Lockstep]]()

    def build(of: TrialConfig) -> Lockstep:
        assert not [lockstep for one in built if (lockstep := one()) and lockstep.trial.large]
        made = Lockstep(of)
        built.append(weakref.ref(made))
        return made

    def fresh(playing: FreshPlaying) -> Outcome:
        lockstep = build(playing.trial)
        lockstep.watch(playing.properties)
        return lockstep.play(playing.schedules[-1], until=playing.until)

    task = Task(trial, 0, 1, first=(case.schedule,))
    locksteps = Locksteps(build)
    result = run_task(task, locksteps, fresh)
    assert (result.status, result.error) == (Status.CAUGHT, None)
    assert result.finding is not None and result.finding.explanation is not None
    assert "The explanation uses smaller pools (" in result.finding.explanation.proof[0]
    assert len(built) == 5
    locksteps.clear()
    assert not any(one() for one in built)


CLAMPED = Schedule((Admit(2, 2), Admit(3, 3), Admit(2, 2), Decode((0, 1, 2))), 1)


@pytest.mark.usefixtures("uncopied")
def test_every_property_but_the_dense_one_is_asked_where_no_copy_is_kept() -> None:
    """And the clean build keeps them all."""
    trial = TrialConfig(buckets=(4,), token_buckets=(12,))
    lockstep = Lockstep(trial, frozenset(PROPERTIES))
    assert list(lockstep.unasked) == ["dense_agreement"]
    outcome = lockstep.play(CLAMPED)
    assert (outcome.error, outcome.violations) == (None, ())
    assert outcome.padded_replays


class World:
    """Two equal worlds of small pools, of which no copy is kept, and a step over them."""

    def __init__(self) -> None:
        model, sizes = PRESETS["gpt_oss"].tiny, PoolSizes(8, 8, 1, 2)
        self.eager, self.graph = (
            KVPools(model, draft_config(model), sizes, torch.float32, torch.device("cpu"))
            for _ in range(2)
        )
        self.twins = Twins(self.eager, self.graph)
        self.twins.begin()

    def arena(self, pools: KVPools, kind: Kind) -> Tensor:
        """Return the target's sub-pool of a kind."""
        return next(
            arena
            for role, of_kind, arena in pools.arenas_of(pools.storage)
            if (role, of_kind) == (Role.TARGET, kind)
        )

    def idle(self) -> Ran:
        """Return a forward that may write nothing but reserved slots."""
        return Ran(Mode.DECODE, None, self.eager.tables.full_to_swa_index_mapping)


def test_twins_tell_which_world_changed_a_slot_that_is_not_its_to_change() -> None:
    """Also where both change it alike, and nothing is told of a reserved slot."""
    for strays in ((), ("eager",), ("graph",), ("eager", "graph")):
        world = World()
        world.arena(world.graph, Kind.SWA)[0, 0, 0] += 1  # The reserved slot.
        if "eager" in strays:
            world.arena(world.eager, Kind.FULL)[0, 1, 3, 0, 2] = 7.0
        world.twins.after_eager(world.idle())
        if "graph" in strays:
            world.arena(world.graph, Kind.FULL)[0, 1, 3, 0, 2] = 7.0
        world.twins.after_graph(world.idle())
        result = world.twins.result
        assert result is not None
        full = Role.TARGET, Kind.FULL
        assert bool(result.eager[full].outside) is ("eager" in strays)
        assert bool(result.graph[full].anywhere) is (len(strays) == 1)
        assert not any(bool(found.anywhere) for key, found in result.graph.items() if key != full)
        assert bool(twins_wrote_outside(result)) is bool(strays)
        told = {name: first_slot_outside(result, name) for name in WORLDS}
        culprit = "eager" if "eager" in strays else "graph"
        assert told == {name: (full, 3) if strays and name == culprit else None for name in WORLDS}


def test_a_slot_lent_to_one_twin_is_not_the_others_to_change() -> None:
    """Each world has a frame of its own: here the graph world's tables lead elsewhere."""
    for stray in (False, True):
        world = World()
        batch = SimpleNamespace(out_cache_loc=torch.tensor([2]))
        frames = [torch.zeros(10, dtype=torch.int64) for _ in range(2)]
        frames[0][2], frames[1][2] = 5, 6
        ran = [Ran(Mode.DECODE, cast(ForwardBatch, batch), mapping) for mapping in frames]
        swa = Role.TARGET, Kind.SWA
        world.arena(world.eager, Kind.SWA)[0, 0, 5] = 1.0
        world.twins.after_eager(ran[0])
        world.arena(world.graph, Kind.SWA)[0, 0, 6] = 1.0
        if stray:
            world.arena(world.graph, Kind.SWA)[0, 0, 5] = 1.0
        world.twins.after_graph(ran[1])
        result = world.twins.result
        assert result is not None
        assert bool(twins_wrote_outside(result)) is stray
        assert first_slot_outside(result, "graph") == ((swa, 5) if stray else None)
        assert bool(result.graph[swa].anywhere)


def test_twins_give_a_world_back_what_it_had_reserved_slots_and_states_too() -> None:
    world = World()
    for pools in (world.eager, world.graph):
        before = pools.storage.clone()
        pools.storage.add_(1.0)
        if pools is world.eager:
            world.twins.restore_eager()
        else:
            world.twins.restore_graph()
        assert torch.equal(pools.storage, before)
    world.graph.sections_of(world.graph.storage)[Section.RECURRENT][0] += 1
    world.arena(world.graph, Kind.FULL)[0, 0, 0] += 1
    world.twins.begin()
    before = world.graph.storage.clone()
    world.graph.storage.zero_()
    world.twins.restore_graph()
    assert torch.equal(world.graph.storage, before)


def test_a_playing_is_told_from_another_by_one_element_that_is_compared() -> None:
    world = World()
    eager, graph = world.twins.playback()
    assert torch.equal(eager, graph) and eager.shape == world.twins.compared.shape
    world.arena(world.graph, Kind.FULL)[0, 1, 5, 0, 3] += 1
    world.arena(world.graph, Kind.FULL)[0, 1, 0, 0, 3] += 1  # Of the reserved slot.
    world.graph.sections_of(world.graph.storage)[Section.DRAFT_TABLE][1, 0, 0] += 1
    _, changed = world.twins.playback()
    assert int(((changed != graph) & world.twins.compared).sum()) == 2


def test_rows_that_grow_hold_what_one_tensor_would() -> None:
    dense, growing = torch.zeros(4, 3000, 5), GrowingRows(5, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for turn in range(8):
        rows = torch.randint(4, (6,), generator=generator).unique()
        places = torch.randint(1, 350 * (turn + 1), rows.shape, generator=generator)
        values = torch.randn(len(rows), 5, generator=generator)
        for table in (dense, growing):
            table[rows, places] = values
            table[1, turn : turn + 2] = values[:1].expand(2, 5)
        assert torch.equal(growing[rows, places], dense[rows, places])
        assert torch.equal(growing[1, :9], dense[1, :9])
    assert max(map(len, growing.rows.values())) < 3000 + 1024
    growing.zero_()
    assert not growing.rows and len(growing[1, :9]) == 0
