"""The allocator: nothing reserved is handed out, nothing twice, and all comes back.

Lists of operations are drawn by Hypothesis and played against a model here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from paritybit.reference.allocator import PageAllocation, PageAllocator
from paritybit.reference.config import PRESETS, Kind, Role, draft_config
from paritybit.reference.pool import HybridKVPool, KVPools, PoolSizes

CONFIG = PRESETS["gpt_oss"]
FULL_SLOTS, SWA_SLOTS, ROWS = 24, 16, 5
PAGE_SIZES = (1, 4)

Operation = tuple[str, int, int]
"""What to do, to which allocation (modulo those there are), with how many tokens."""

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "extend", "extend", "truncate", "evict", "free"]),
        st.integers(0, ROWS - 1),
        st.integers(1, 9),
    ),
    max_size=30,
)


def small_pool(page_size: int, device: str) -> HybridKVPool:
    """Return a pool that a few requests fill."""
    sizes = PoolSizes(FULL_SLOTS, SWA_SLOTS, page_size, ROWS)
    draft = draft_config(CONFIG)
    return KVPools(CONFIG, draft, sizes, torch.float32, torch.device(device))[Role.TARGET]


@dataclass
class ModelRequest:
    """An allocation, and what the model knows of it: its tokens, and how many lost their SWA page.

    The first `mapped` tokens' slots were mapped, of the pages that it still holds.
    """

    allocation: PageAllocation
    length: int = 0
    evicted: int = 0
    mapped: int = 0


@dataclass
class AllocationModel:
    """An allocator, the requests it serves, and how often it reported a change."""

    allocator: PageAllocator
    requests: list[ModelRequest] = field(default_factory=list)
    changes: int = 0

    @classmethod
    def of(cls, page_size: int, device: str, seed: int = 0) -> "AllocationModel":
        """Return the model of a pool of its own."""
        model = cls(PageAllocator(small_pool(page_size, device)))
        model.allocator.on_change = model.count
        model.allocator.clear(seed)
        return model

    def count(self) -> None:
        """Count one change."""
        self.changes += 1

    def admit(self) -> ModelRequest | None:
        """Give a new request a row, if there is one."""
        allocation = self.allocator.alloc_row()
        if allocation is None:
            return None
        self.requests.append(ModelRequest(allocation))
        return self.requests[-1]

    def extend(self, request: ModelRequest, count: int) -> bool:
        """Give a request slots for more tokens and map them, if there is room."""
        begin, end = request.length, request.length + count
        full = self.allocator.extend(request.allocation, begin, count)
        if full is None:
            return False
        device = self.allocator.pool.device
        swa = self.allocator.swa_slots(request.allocation, begin, end)
        self.allocator.pool.tables.write(
            torch.full((count,), request.allocation.row, device=device),
            torch.arange(begin, end, device=device),
            torch.tensor(full, device=device),
            torch.tensor(swa, device=device),
        )
        request.length = end
        request.mapped = max(request.mapped, end)
        return True

    def truncate(self, request: ModelRequest, tokens: int) -> None:
        """Keep a request's first tokens, and as many slots as their pages have."""
        self.allocator.truncate(request.allocation, tokens)
        slots = -(-tokens // self.allocator.page_size) * self.allocator.page_size
        request.length = min(request.length, tokens)
        request.evicted = min(request.evicted, slots)
        request.mapped = min(request.mapped, slots)

    def evict(self, request: ModelRequest, tokens: int) -> int:
        """Evict a request's first tokens, as far as whole pages allow; return how many pages."""
        tokens = min(tokens, request.length)
        whole = tokens - tokens % self.allocator.page_size
        request.evicted = max(request.evicted, whole)
        return self.allocator.evict(request.allocation, tokens)

    def free(self, request: ModelRequest) -> None:
        """Finish a request."""
        self.requests.remove(request)
        self.allocator.free(request.allocation)

    def play(self, operation: Operation) -> None:
        """Do one operation, if there is a request to do it to."""
        name, pick, tokens = operation
        if name == "admit":
            self.admit()
        elif self.requests:
            request = self.requests[pick % len(self.requests)]
            if name == "extend":
                event("room" if self.extend(request, tokens) else "no room")
            elif name == "evict":
                event("evicted" if self.evict(request, tokens) else "nothing to evict")
            elif name == "truncate":
                # A token whose SWA page is gone cannot be written again.
                self.truncate(request, max(request.evicted, request.length - tokens))
            else:
                self.free(request)

    @property
    def mapping(self) -> torch.Tensor:
        """The pool's map from full to SWA slots."""
        return self.allocator.pool.full_to_swa_index_mapping


@pytest.fixture(params=PAGE_SIZES, ids=[f"page{size}" for size in PAGE_SIZES])
def model(request: pytest.FixtureRequest, device: str) -> AllocationModel:
    """Return a new model, for each page size."""
    return AllocationModel.of(request.param, device)


def owned_pages(model: AllocationModel, kind: Kind) -> list[int]:
    """Return the pages of a sub-pool that requests hold."""
    return [
        page
        for holder in (request.allocation for request in model.requests)
        for page in (holder.full_pages if kind is Kind.FULL else holder.swa_pages)
        if page is not None
    ]


def check_ownership(model: AllocationModel) -> None:
    """Every page, row and state slot but the reserved ones has one owner, or is free."""
    allocator = model.allocator
    full_pages, swa_pages = FULL_SLOTS // allocator.page_size, SWA_SLOTS // allocator.page_size
    owned_full, owned_swa = owned_pages(model, Kind.FULL), owned_pages(model, Kind.SWA)
    assert sorted(owned_full + allocator.free_full) == list(range(1, full_pages + 1))
    assert sorted(owned_swa + allocator.free_swa) == list(range(1, swa_pages + 1))
    rows = [request.allocation.row for request in model.requests]
    assert sorted(rows + allocator.free_rows) == list(range(1, ROWS + 1))
    states = [request.allocation.state_slot for request in model.requests]
    assert sorted(states + allocator.free_states) == list(range(1, ROWS + 1))


def check_slots(model: AllocationModel) -> None:
    """No slot of a live token is reserved or another's, and each token has as many as it needs."""
    allocator = model.allocator
    full = [s for r in model.requests for s in allocator.full_slots(r.allocation, 0, r.length)]
    swa = [
        s for r in model.requests for s in allocator.swa_slots(r.allocation, r.evicted, r.length)
    ]
    assert len(full) == sum(request.length for request in model.requests)
    assert len(swa) == sum(max(0, request.length - request.evicted) for request in model.requests)
    for slots, last in ((full, FULL_SLOTS), (swa, SWA_SLOTS)):
        assert len(set(slots)) == len(slots)
        reserved = range(allocator.page_size)
        assert all(slot not in reserved and slot < last + len(reserved) for slot in slots)


def check_mapping(model: AllocationModel) -> None:
    """The mapping holds the SWA slot of each slot mapped, and zero wherever nobody has a page."""
    allocator = model.allocator
    wanted = [0] * (FULL_SLOTS + allocator.page_size) + [-1]
    for request in model.requests:
        mapped = request.evicted, request.mapped
        full, swa = (
            slots(request.allocation, *mapped)
            for slots in (allocator.full_slots, allocator.swa_slots)
        )
        for full_slot, swa_slot in zip(full, swa, strict=True):
            wanted[full_slot] = swa_slot
    assert model.mapping.tolist() == wanted


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@given(operations=OPERATIONS, seed=st.integers(0, 3))
def test_ownership_is_exact_whatever_is_done(
    device: str, page_size: int, operations: list[Operation], seed: int
) -> None:
    """After every operation; and once all requests are freed, everything has come back."""
    model = AllocationModel.of(page_size, device, seed)
    for operation in [*[("admit", 0, 1)] * 2, *operations, *[("free", 0, 1)] * ROWS]:
        model.play(operation)
        check_ownership(model)
        check_slots(model)
        check_mapping(model)
    assert model.requests == []
    assert len(model.allocator.free_full) == FULL_SLOTS // page_size
    assert len(model.allocator.free_swa) == SWA_SLOTS // page_size
    assert len(model.allocator.free_rows) == ROWS


def test_a_freed_page_and_row_are_the_first_to_be_issued_again(model: AllocationModel) -> None:
    first, second = model.admit(), model.admit()
    assert first is not None and second is not None
    assert model.extend(first, 4) and model.extend(second, 4)
    freed = (
        first.allocation.row,
        list(first.allocation.full_pages),
        list(first.allocation.swa_pages),
    )
    model.free(first)
    again = model.admit()
    assert again is not None and model.extend(again, 4)
    assert (again.allocation.row, again.allocation.full_pages, again.allocation.swa_pages) == freed


def clear(model: AllocationModel, request: ModelRequest) -> None:
    """Own nothing."""
    model.allocator.clear(seed=0)


MUTATIONS: dict[str, Callable[[AllocationModel, ModelRequest], object]] = {
    "extend": lambda model, request: model.extend(request, 1),
    "evict": lambda model, request: model.evict(request, 4),
    "truncate": lambda model, request: model.truncate(request, 3),
    "free": lambda model, request: model.free(request),
    "clear": clear,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_change_of_slots_is_reported(name: str, model: AllocationModel) -> None:
    request = model.admit()
    assert request is not None and model.extend(request, 8)
    before = model.changes
    MUTATIONS[name](model, request)
    assert model.changes > before
