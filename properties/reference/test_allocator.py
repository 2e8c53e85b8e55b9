"""The allocator: what is freed is issued first, and each change of slots is reported.

`slot_ownership` says that each page has one owner. Clean trials check it after each step.
"""

from collections.abc import Callable

import pytest
import torch
from paritybit.reference.allocator import PageAllocation, PageAllocator
from paritybit.reference.config import PRESETS, Role, draft_config
from paritybit.reference.pool import KVPools, PoolSizes

CONFIG = PRESETS["gpt_oss"]


@pytest.fixture(params=[1, 4], ids=["page1", "page4"])
def allocator(request: pytest.FixtureRequest, device: str) -> PageAllocator:
    """Return the allocator of a pool that a few requests fill, for each page size."""
    sizes = PoolSizes(24, 16, request.param, 5)
    pools = KVPools(CONFIG, draft_config(CONFIG), sizes, torch.float32, torch.device(device))
    return PageAllocator(pools[Role.TARGET])


def admitted(allocator: PageAllocator, tokens: int) -> PageAllocation:
    """Return the allocation of a new request with slots for its tokens."""
    allocation = allocator.alloc_row()
    assert allocation is not None
    assert allocator.extend(allocation, 0, tokens)
    return allocation


def test_a_freed_page_and_row_are_the_first_to_be_issued_again(allocator: PageAllocator) -> None:
    first, _ = admitted(allocator, 4), admitted(allocator, 4)
    freed = first.row, list(first.full_pages), list(first.swa_pages)
    allocator.free(first)
    again = admitted(allocator, 4)
    assert (again.row, again.full_pages, again.swa_pages) == freed


def test_a_request_that_finds_no_room_changes_nothing(allocator: PageAllocator) -> None:
    first, second = admitted(allocator, 8), admitted(allocator, 4)
    before = list(allocator.free_full), list(allocator.free_swa)
    assert not allocator.extend(second, 4, 9)
    assert (allocator.free_full, allocator.free_swa) == before
    allocator.evict(first, 8)
    assert len(allocator.free_swa) == len(before[1]) + 8 // allocator.page_size
    assert allocator.extend(second, 4, 9)


MUTATIONS: dict[str, Callable[[PageAllocator, PageAllocation], object]] = {
    "extend": lambda allocator, request: allocator.extend(request, 8, 1),
    "evict": lambda allocator, request: allocator.evict(request, 4),
    "truncate": lambda allocator, request: allocator.truncate(request, 3),
    "free": lambda allocator, request: allocator.free(request),
    "clear": lambda allocator, request: allocator.clear(seed=0),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_change_of_slots_is_reported(name: str, allocator: PageAllocator) -> None:
    request, changes = admitted(allocator, 8), list[str]()
    allocator.on_change = lambda: changes.append(name)
    MUTATIONS[name](allocator, request)
    assert changes
