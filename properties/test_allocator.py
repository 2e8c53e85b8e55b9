"""The allocator: nothing reserved is handed out, nothing twice, and everything comes back.

Lists of operations are drawn by Hypothesis and played against a ledger kept here.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from reference.allocator import Allocator, Holding
from reference.batch import Tables
from reference.config import PRESETS, Kind
from reference.pool import HybridKVPool, PoolSizes

CONFIG = PRESETS["gpt_oss"].tiny
FULL_SLOTS, SWA_SLOTS, ROWS = 24, 16, 5
PAGE_SIZES = (1, 4)

Operation = tuple[str, int, int]
"""What to do, to which holding (modulo those there are), with how many tokens."""

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "extend", "extend", "evict", "free"]),
        st.integers(0, ROWS - 1),
        st.integers(1, 9),
    ),
    max_size=30,
)


def small_pool(page_size: int, device: str) -> HybridKVPool:
    """Return a pool that a few requests fill."""
    sizes = PoolSizes(FULL_SLOTS, SWA_SLOTS, page_size, ROWS)
    return HybridKVPool(CONFIG, sizes, torch.float32, torch.device(device))


@dataclass
class Request:
    """A holding, and what the ledger knows of it: its tokens, and how many lost their SWA page."""

    holding: Holding
    length: int = 0
    evicted: int = 0


@dataclass
class Ledger:
    """An allocator, the requests it serves, and how often it told of a change."""

    allocator: Allocator
    requests: list[Request] = field(default_factory=list)
    changes: int = 0

    @classmethod
    def of(cls, page_size: int, device: str, seed: int = 0) -> "Ledger":
        """Return the ledger of a pool of its own."""
        ledger = cls(Allocator(small_pool(page_size, device)))
        ledger.allocator.on_change = ledger.count
        ledger.allocator.clear(seed)
        return ledger

    def count(self) -> None:
        """Count one change."""
        self.changes += 1

    def admit(self) -> Request | None:
        """Give a new request a row, if there is one."""
        holding = self.allocator.alloc_row()
        if holding is None:
            return None
        self.requests.append(Request(holding))
        return self.requests[-1]

    def extend(self, request: Request, count: int) -> bool:
        """Give a request slots for more tokens and map them, if there is room."""
        begin, end = request.length, request.length + count
        full = self.allocator.extend(request.holding, begin, count)
        if full is None:
            return False
        device = self.allocator.pool.device
        swa = self.allocator.swa_slots(request.holding, begin, end)
        tables = Tables(self.allocator.pool.req_to_token, self.mapping)
        tables.write(
            torch.full((count,), request.holding.row, device=device),
            torch.arange(begin, end, device=device),
            torch.tensor(full, device=device),
            torch.tensor(swa, device=device),
        )
        request.length = end
        return True

    def evict(self, request: Request, tokens: int) -> int:
        """Evict a request's first tokens, as far as whole pages allow; return how many pages."""
        tokens = min(tokens, request.length)
        whole = tokens - tokens % self.allocator.page_size
        request.evicted = max(request.evicted, whole)
        return self.allocator.evict(request.holding, tokens)

    def free(self, request: Request) -> None:
        """Finish a request."""
        self.requests.remove(request)
        self.allocator.free(request.holding)

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
            else:
                self.free(request)

    @property
    def mapping(self) -> torch.Tensor:
        """The pool's map from full to SWA slots."""
        return self.allocator.pool.full_to_swa_index_mapping

    def state(self) -> tuple[object, ...]:
        """Return a copy of everything that an operation could change."""
        return (
            list(self.allocator.free_full),
            list(self.allocator.free_swa),
            list(self.allocator.free_rows),
            [(list(each.holding.full_pages), list(each.holding.swa_pages)) for each in self.requests],
            self.mapping.tolist(),
        )
