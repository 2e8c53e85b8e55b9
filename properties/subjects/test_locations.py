"""Write locations of the subject: translation by scheme, what each graph holds of it, the memo."""

import logging
from functools import cache

import pytest
import torch
from paritybit.harness.lockstep.config import SUBJECT_LOGGER, TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS, Kind, Role, draft_config
from paritybit.reference.pool import HybridKVPool, KVPools, PoolSizes
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.harness.planting import captured, shared

CONFIG = PRESETS["gpt_oss"]
PER_LAYER, PRESET, MEMO = LocationScheme


@cache
def storage_pool(device: str) -> HybridKVPool:
    """Return a pool whose full slot f, but for slots 5 and 6, is mapped to SWA slot 70 - f."""
    place = torch.device(device)
    pool = KVPools(CONFIG, draft_config(CONFIG), PoolSizes(), torch.float32, place)[Role.TARGET]
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


def test_a_preset_location_stays_until_it_is_set_again(device: str) -> None:
    """Captures leave a static buffer, full graphs keep what is there, prefills set their own."""
    pair = shared(device, "decode").pair
    subject, _ = captured(shared(device, "decode"))
    static = {mode: runner.inputs.buffers for mode, runner in subject.runners.items()}
    pool = subject.pools[Role.TARGET]
    with torch.inference_mode():
        pair.reset(0)
        at_capture = pool.state.swa_loc
        assert at_capture is not None and at_capture.shape == (8,), "of the smallest bucket"
        verify = static[Mode.TARGET_VERIFY]["out_cache_loc_swa"]
        assert at_capture.data_ptr() == verify.data_ptr()
        pair.step(Admit(5, chunk=5))
        replayed = pool.state.swa_loc
        assert replayed is not None and replayed.shape == (12,)
        assert replayed.data_ptr() == static[Mode.EXTEND]["out_cache_loc_swa"].data_ptr()
        long = pair.step(Admit(25, chunk=25))
        eager = pool.state.swa_loc
        assert eager is not None and long is not None
        assert eager.tolist() == list(long.graph.spans[0].swa_slots)
        pair.step(Decode((0, 1)))
        assert pool.state.swa_loc is eager
        assert subject.pools[Role.DRAFT].state.swa_loc is None


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
