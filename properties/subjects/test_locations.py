"""Write locations of the subject: translation by scheme, what each graph holds of it, the memo."""

import logging
from collections import Counter
from functools import cache

import pytest
import torch
from paritybit.harness.lockstep.config import SUBJECT_LOGGER, TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Idle, Verify, idle_modes
from paritybit.reference.config import PRESETS, Kind, Role
from paritybit.reference.pool import HybridKVPool, PoolSizes
from paritybit.subjects.pool import TRANSLATE, SubjectPool
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.subjects.engines import ENGINE_OF, TRIALS, trial_of
from properties.support.subjects.graph_world import shared_world
from properties.support.subjects.runners import EXPECTED, MEMO, PER_LAYER, PRESET, Times

CONFIG = PRESETS["gpt_oss"].tiny


@cache
def storage_pool(device: str) -> HybridKVPool:
    """Return a pool whose full slot f, but for slots 5 and 6, is mapped to SWA slot 70 - f."""
    pool = HybridKVPool(CONFIG, PoolSizes(), torch.float32, torch.device(device))
    mapping = pool.full_to_swa_index_mapping
    mapping[1:70] = torch.arange(69, 0, -1, device=device)
    mapping[5:7] = 0
    return pool


def subject_pool(scheme: LocationScheme, device: str) -> SubjectPool:
    """Return the engine's view of that pool."""
    return SubjectPool(
        storage_pool(device), TrialConfig(device=device).ops(), scheme, SUBJECT_LOGGER
    )


def locs(device: str, *values: int) -> Tensor:
    """Return full slots as a batch holds them."""
    return torch.tensor(values, device=device)


@pytest.mark.parametrize("scheme", LocationScheme)
def test_a_translation_is_int32_and_maps_minus_one_to_itself_and_unmapped_to_zero(
    scheme: LocationScheme, device: str
) -> None:
    translated = subject_pool(scheme, device).translate_loc_from_full_to_swa(
        locs(device, 1, 69, -1, 5, 0, 33)
    )
    assert translated.dtype is torch.int32
    assert translated.tolist() == [69, 1, -1, 0, 0, 37]


@pytest.mark.parametrize("scheme", LocationScheme)
def test_kv_is_stored_at_the_full_slot_or_at_its_swa_slot(
    scheme: LocationScheme, device: str
) -> None:
    for layer, kind in enumerate(CONFIG.layers):
        assert stored_slots(subject_pool(scheme, device), layer, locs(device, 3, 30)) == (
            {3, 30} if kind is Kind.FULL else {67, 40}
        )


def test_a_preset_location_stands_in_for_the_translation_on_swa_layers(device: str) -> None:
    for layer, kind in enumerate(CONFIG.layers):
        pool = subject_pool(PRESET, device)
        pool.set_swa_loc(locs(device, 50, 51).int())
        pool.ops.log = []
        slots = stored_slots(pool, layer, locs(device, 3, 30))
        assert slots == ({3, 30} if kind is Kind.FULL else {50, 51})
        assert pool.ops.log == ["store_kv"]


def stored_slots(pool: SubjectPool, layer: int, loc: Tensor) -> set[int]:
    """Return the slots of `layer` that a store of a value no pool holds has changed."""
    cache = pool.pool.cache(layer)
    before = cache.clone()
    rows = torch.full((loc.shape[0], *cache.shape[2:]), 1e6, device=cache.device)
    pool.set_kv_buffer(layer, loc, rows, -rows)
    changed = (cache != before).flatten(2).any(-1)
    assert torch.equal(changed[0], changed[1])
    cache.copy_(before)
    return set(changed[0].nonzero().flatten().tolist())


@pytest.mark.parametrize(("engine", "scheme"), TRIALS)
def test_a_graph_holds_the_translations_of_its_scheme(
    engine: str, scheme: LocationScheme, device: str
) -> None:
    """And the runner says so, and stores and attends as often as the table says."""
    world = shared_world(trial_of(engine, scheme, device))
    world.reset()
    world.run(Idle(0))  # What is not captured says what it ran last.
    layers = Counter(world.config.layers)
    for name, runner in world.runners.items():
        wanted = EXPECTED[name]
        for bucket in runner.buckets:
            found = Counter(runner.operations(bucket))
            translations = times(wanted.translations[scheme], layers[Kind.SWA])
            assert found[TRANSLATE] == translations == runner.translations(scheme), name
            assert found["store_kv"] == times(wanted.stores, layers.total()), name
            assert found["attention"] == times(wanted.attends, layers.total()), name


def times(count: Times, layers: int) -> int:
    """Return how often an op runs, for what runs it on each of some layers or a number of times."""
    return layers if count == "each layer" else count


def test_a_preset_location_stays_until_it_is_set_again(device: str) -> None:
    """Captures leave a static buffer, full graphs keep what is there, prefills set their own."""
    world = shared_world(trial_of(ENGINE_OF["decode"], PRESET, device))
    world.reset()
    static = {
        name: buffer
        for name, runner in world.runners.items()
        if (buffer := runner.inputs.buffers.get("out_cache_loc_swa")) is not None
    }
    assert static.keys() == {
        name for name in world.runners if "out_cache_loc_swa" in EXPECTED[name].inputs_under(PRESET)
    }
    pool = world.engine.pools[Role.TARGET]
    captured = pool.state.swa_loc
    assert captured is not None
    assert captured.data_ptr() == static["target_verify"].data_ptr()
    assert captured.shape == (8,), "four drafts of the smallest bucket, the last one captured"
    for pick, _ in enumerate(idle_modes(world.scheduler.modes)):
        world.run(Idle(pick))
    pool.invalidate_loc_cache()
    assert pool.state.swa_loc is captured
    world.run(Admit(5, chunk=5))
    replayed = pool.state.swa_loc
    assert replayed is not None
    assert (replayed.data_ptr(), replayed.shape) == (static["piecewise"].data_ptr(), (24,))
    long = world.run(Admit(25, chunk=25))
    eager = pool.state.swa_loc
    assert eager is not None and long is not None
    assert eager.tolist() == list(long.batch.spans[0].swa_slots)
    world.run(Decode((0, 1)))
    world.run(Verify((0, 1), accept=0))
    assert pool.state.swa_loc is eager
    assert world.engine.pools[Role.DRAFT].state.swa_loc is None
    pool.set_swa_loc(None)
    assert pool.state.swa_loc is None


@pytest.mark.parametrize("runner", [name for name, row in EXPECTED.items() if not row.captures])
def test_a_compiled_decode_has_no_preset_location(runner: str, device: str) -> None:
    """It drops the one that an eager prefill has left, and translates in each layer."""
    world = shared_world(trial_of(ENGINE_OF[runner], PRESET, device))
    world.reset()
    pool = world.engine.pools[Role.TARGET]
    world.run(Admit(3, chunk=3))
    assert pool.state.swa_loc is not None
    world.run(Decode((0,)))
    assert pool.state.swa_loc is None


def memo(device: str) -> SubjectPool:
    """Return a pool that memoises, its memo empty."""
    return subject_pool(MEMO, device)


def test_the_memo_warns_at_each_true_change(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two tensors that alternate warn each time, though every value is right."""
    pool, first, second = memo(device), locs(device, 1, 2), locs(device, 3, 4, 7)
    for alternation in range(3):
        assert pool.translate_loc_from_full_to_swa(first).tolist() == [69, 68]
        assert pool.translate_loc_from_full_to_swa(second).tolist() == [67, 66, 63]
        assert len(caplog.messages) == 1 + 2 * alternation
    assert "from 2 elements to 3 without invalidate_loc_cache()" in caplog.messages[0]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_the_memo_is_silent_while_its_tensor_stays(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = memo(device), locs(device, 1, 2)
    pool.ops.log = []
    first = pool.translate_loc_from_full_to_swa(loc)
    assert pool.translate_loc_from_full_to_swa(loc) is first
    assert pool.ops.log == [TRANSLATE]
    assert caplog.messages == []


def test_the_memo_is_silent_after_an_invalidation(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, first, second = memo(device), locs(device, 1, 2), locs(device, 3, 4)
    pool.translate_loc_from_full_to_swa(first)
    pool.invalidate_loc_cache()
    assert pool.translate_loc_from_full_to_swa(second).tolist() == [67, 66]
    assert caplog.messages == []


def test_a_tensor_rewritten_in_place_gets_its_old_translation_silently(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hazard of the memo: a static buffer keeps its key. An invalidation mends it."""
    pool, loc = memo(device), locs(device, 1, 2)
    pool.translate_loc_from_full_to_swa(loc)
    loc.add_(10)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [69, 68]
    pool.invalidate_loc_cache()
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [59, 58]
    assert caplog.messages == []


def test_the_memo_knows_a_tensor_by_its_address_and_element_count(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = memo(device), locs(device, 1, 2, 3)
    pool.translate_loc_from_full_to_swa(loc)
    assert pool.state.cached_key == (loc.data_ptr(), 3)
    pool.translate_loc_from_full_to_swa(loc[:])
    assert caplog.messages == []
    pool.translate_loc_from_full_to_swa(loc[:2])
    assert len(caplog.messages) == 1
    pool.translate_loc_from_full_to_swa(loc[1:])
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("scheme", [PER_LAYER, PRESET])
def test_without_a_memo_every_translation_is_made_anew(
    scheme: LocationScheme, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = subject_pool(scheme, device), locs(device, 1, 2)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [69, 68]
    loc.add_(10)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [59, 58]
    assert pool.translate_loc_from_full_to_swa(locs(device, 7)).tolist() == [63]
    assert caplog.messages == []
