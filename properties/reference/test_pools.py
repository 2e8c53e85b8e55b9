"""The pools: a target's KV and its draft model's in one storage, and the tables they share."""

import pytest
import torch
from paritybit.harness.lockstep.bits import bits
from paritybit.reference.config import PRESETS, Kind, Role, draft_config
from paritybit.reference.pool import KVPools, PoolSizes

FULL_SLOTS, SWA_SLOTS, ROWS = 24, 16, 5


def both_pools(preset: str, device: str, page_size: int = 1) -> KVPools:
    """Return the pools of a target and its draft model."""
    config = PRESETS[preset]
    sizes = PoolSizes(FULL_SLOTS, SWA_SLOTS, page_size, ROWS)
    place = torch.device(device)
    return KVPools(config, draft_config(config), sizes, torch.float32, place)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_model_has_kv_of_its_own_in_one_storage(preset: str, device: str) -> None:
    """Every element of the storage is one model's, one kind's: it shows in no other view."""
    for page_size in (1, 4):
        pools = both_pools(preset, device, page_size)
        configs = {Role.TARGET: PRESETS[preset], Role.DRAFT: pools[Role.DRAFT].config}
        pools.storage.zero_()
        places = [(role, kind) for role in Role for kind in Kind]
        for mark, (role, kind) in enumerate(places, 1):
            arena = pools[role].arena[kind]
            arena += mark
            shape = configs[role].shape(kind)
            slots = (FULL_SLOTS if kind is Kind.FULL else SWA_SLOTS) + page_size
            layers = len(configs[role].layers_of(kind))
            assert arena.shape == (layers, 2, slots, shape.kv_heads, shape.head_dim)
        seen = {(role, kind): arena for role, kind, arena in pools.layout.arenas_of(pools.storage)}
        assert list(seen) == places
        for mark, place in enumerate(places, 1):
            assert bool((seen[place] == mark).all())
        states = pools.layout.states_of(pools.storage)
        assert not states.any()
        parts = [*seen.values(), states]
        assert sum(part.numel() for part in parts) == pools.storage.numel()


def test_a_reset_fills_both_pools_from_the_seed_and_forgets_every_index(device: str) -> None:
    preset = "mimo"
    pools = both_pools(preset, device)
    pools.storage.fill_(torch.nan)
    pools.tables.req_to_token.fill_(3)
    pools.tables.full_to_swa_index_mapping.fill_(3)
    pools.reset(seed=4)
    assert bool(pools.storage.isfinite().all())
    assert not pools.tables.req_to_token.any()
    assert pools.tables.full_to_swa_index_mapping.tolist() == [0] * (FULL_SLOTS + 1) + [-1]
    again, other = both_pools(preset, device), both_pools(preset, device)
    again.reset(seed=4)
    other.reset(seed=5)
    assert torch.equal(bits(pools.storage), bits(again.storage))
    assert not torch.equal(bits(pools.storage), bits(other.storage))
