"""An engine's side of a world's requests, whose blocks a manager of the engine's own gives.

The world's scheduler says who runs; the engine's manager then gives and takes blocks. Between
the world's pages and the engine's blocks of a group lies a bijection, through which all KV is
read in the world's layout and slot numbers, and written. A page is as large as a block.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.reference.allocator import Owner
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind, Role
from paritybit.subjects.engines.paged.pages import Cache, PairedPages
from paritybit.subjects.engines.paged.runner import Ran
from paritybit.subjects.engines.shared.world import Known, World


@dataclass(frozen=True)
class Asked:
    """What a batch runs of a request: its tokens begin .. end-1."""

    serial: int
    begin: int
    end: int


@dataclass(frozen=True)
class Settling:
    """A forward, until the engine is told what its requests sampled: those, as they were asked."""

    ran: Ran
    asked: tuple[Asked, ...]


class PagedRequests(ABC):
    """The engine's requests by serial, those that are parked, and what it is yet to be told.

    `reached` is up to which token each of them has run, rejected drafts included. `pages` is the
    bijection of the world's pages and the engine's blocks, `finished` and `preempted` are names.
    """

    def __init__(
        self, world: World, caches: Sequence[Cache], blocks: int, roles: Sequence[Role]
    ) -> None:
        self.world = world
        self.blocks = blocks
        self.pages = PairedPages([world.pools[role] for role in roles], caches, blocks)
        self.config = world.pools.layout.configs[Role.TARGET]
        self.clear()

    def clear(self) -> None:
        """Know no request; every block is free."""
        self.held: dict[int, Any] = {}
        self.reached: dict[int, int] = {}
        self.parked: dict[int, Any] = {}
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.ran: Settling | None = None
        self._placed: tuple[Mode, tuple[Asked, ...]] | None = None
        self._pair(())

    def asked(self, batch: ForwardBatch) -> tuple[Asked, ...]:
        """Return what a batch runs of each of its requests."""
        serials = {owner.row: owner.serial for owner in self.world.owners()}
        return tuple(Asked(serials[span.row], span.begin, span.end) for span in batch.spans)

    def place(self, batch: ForwardBatch, settle: Callable[[Settling], None]) -> Any:
        """Give a batch's requests blocks; return what the engine is told to run.

        A batch that is run again keeps its blocks. `settle` is called once with the batch before.
        Raises RuntimeError if the manager has no room, or freed a block that a window reaches.
        """
        asked = self.asked(batch)
        if self._placed == (batch.mode, asked):
            told = self.told(batch, asked, set(), set())
            for one in asked:
                self.tell(told, one, self.held[one.serial], None)
            return told
        if self.ran is not None:
            settle(self.ran)
        self.ran, self._placed = None, (batch.mode, asked)
        told = self.told(batch, asked, self.finished, self.preempted)
        self.finished, self.preempted = set(), set()
        known = self.world.running()
        for one in asked:
            self.give(told, one, known[one.serial])
            self.reached[one.serial] = max(self.reached.get(one.serial, 0), one.end)
        self._check_windows(asked)
        self._pair(tuple(one.owner for one in known.values()))
        self.pages.write_kv()
        return told

    @abstractmethod
    def told(
        self, batch: ForwardBatch, asked: Sequence[Asked], finished: set[str], preempted: set[str]
    ) -> Any:
        """Return what the engine is told of a batch as a whole, and who has left."""

    @abstractmethod
    def give(self, told: Any, asked: Asked, known: Known) -> None:
        """Give one request of a batch blocks for its tokens, and tell the engine of it.

        Raises RuntimeError if the manager has no room.
        """

    @abstractmethod
    def tell(self, told: Any, asked: Asked, request: Any, blocks: Any) -> None:
        """Tell the engine to run a request that it knows, with further blocks, if any."""

    @abstractmethod
    def freed(self, request: Any) -> None:
        """Free what the manager has given a request, which may come again."""

    @abstractmethod
    def blocks_of(self, serial: int, kind: Kind) -> list[int]:
        """Return the blocks that the manager has given a request in a group, 0 for one freed."""

    def follow(self) -> None:
        """Free what the world has freed since: requests that finished or were retracted."""
        if not self.held:
            return
        running = {owner.serial for owner in self.world.owners()}
        for serial in [serial for serial in self.held if serial not in running]:
            request = self.held.pop(serial)
            self.reached.pop(serial)
            self.freed(request)
            if serial in self.world.retracted():
                self.parked[serial] = request
                self.preempted.add(name_of(serial))
            else:
                self.finished.add(name_of(serial))

    def slots_of(self, serial: int, kind: Kind, begin: int, end: int) -> list[int]:
        """Return the engine's slots of tokens begin .. end-1 of a request."""
        blocks, size = self.blocks_of(serial, kind), self.pages.size
        return [blocks[token // size] * size + token % size for token in range(begin, end)]

    def _check_windows(self, asked: Sequence[Asked]) -> None:
        """Raise RuntimeError if the manager freed a block that a window of a batch reaches."""
        for one in asked:
            first, size = max(one.begin - self.config.window + 1, 0), self.pages.size
            reached = self.blocks_of(one.serial, Kind.SWA)[first // size : -(-one.end // size)]
            if not all(reached):
                raise RuntimeError(
                    f"the engine freed a block of request {one.serial}, but its window"
                    f" still begins at token {first}"
                )

    def _pair(self, owners: Sequence[Owner]) -> None:
        """Pair the world's pages with the blocks of requests that the engine knows."""
        held = [owner for owner in owners if owner.serial in self.held]
        for kind in Kind:
            given = [owner.full_pages if kind is Kind.FULL else owner.swa_pages for owner in held]
            blocks = [self.blocks_of(owner.serial, kind) for owner in held]
            self.pages.pair(kind, given, blocks)


def name_of(serial: int) -> str:
    """Return what the engine calls a request."""
    return f"request-{serial}"
