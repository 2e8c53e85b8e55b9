"""An engine's pool kept in step with our world: the same requests, in slots of its own.

Our world schedules; who owns what is then followed, through the engine's own allocator
and request table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.lockstep.scheduler import Request, Scheduler
from reference.batch import ForwardBatch
from reference.config import Kind
from subjects.engines.sglang.pool import ReleasedPool


@dataclass
class Held:
    """What the engine holds for a request: its row, its tokens, and how many lost their SWA KV."""

    row: int
    tokens: int = 0
    evicted: int = 0


class Mirror:
    """The engine's side of a world's requests, by serial number."""

    def __init__(self, world: Scheduler, pool: ReleasedPool) -> None:
        self.world = world
        self.pool = pool
        self.held: dict[int, Held] = {}

    def reset(self, seed: int) -> None:
        """Hold nothing."""
        self.pool.reset(seed)
        self.held.clear()

    def follow(self) -> None:
        """Free what our world has freed since, whole requests and what left the windows."""
        running = {each.serial: each for each in self.world.running if each.allocation is not None}
        for serial in [each for each in self.held if each not in running]:
            gone = self.held.pop(serial)
            self.pool.free(gone.row, gone.tokens, gone.evicted)
            self.pool.requests.free_slots.append(gone.row)
        for serial, held in self.held.items():
            evicted = self._evicted(running[serial])
            if evicted > held.evicted:
                self.pool.evict(held.row, held.evicted, evicted)
                held.evicted = evicted

    def take(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Give a batch's requests rows and slots; return both, int64 [B] and [T]."""
        rows, locs = [], []
        for span in batch.spans:
            serial = self.world.request_of(span.row).serial
            if serial not in self.held:
                self.held[serial] = Held(self.pool.requests.free_slots.pop(0))
            held = self.held[serial]
            locs.append(self.pool.extend(held.row, held.tokens, span.end - held.tokens))
            held.tokens = span.end
            rows.append(held.row)
        return torch.tensor(rows, device=batch.positions.device), torch.cat(locs)

    def pairs(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return, of every token that has KV in a layer, its slot in our pool and the engine's."""
        kind = self.world.config.layers[layer]
        ours, theirs = list[int](), [torch.zeros(0, dtype=torch.int64)]
        for request in self.world.running:
            held = self.held.get(request.serial)
            if held is None or request.allocation is None:
                continue
            tokens = min(held.tokens, request.length)
            first = held.evicted if kind is Kind.SWA else 0
            allocator = self.world.allocator
            slots = allocator.swa_slots if kind is Kind.SWA else allocator.full_slots
            ours += slots(request.allocation, first, tokens)
            theirs.append(self.pool.slots(layer, self.pool.held(held.row, first, tokens)).cpu())
        return torch.tensor(ours, dtype=torch.int64), torch.cat(theirs)

    def _evicted(self, request: Request) -> int:
        """Return how many of a request's first tokens have no SWA slot any more."""
        pages = request.allocation.swa_pages if request.allocation is not None else []
        kept = next((index for index, page in enumerate(pages) if page is not None), len(pages))
        return min(kept * self.pool.sizes.page_size, self.held[request.serial].tokens)
