"""Shared prefixes: pages freed while other requests hold them, and evicted windows."""

from collections.abc import Sequence

import torch
from paritybit.reference.allocator import NEVER_SEEN, Allocator, PageAllocation
from paritybit.reference.batch import Mode
from paritybit.reference.config import Feature, Kind
from paritybit.reference.pool import Tables
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "shared prefix"


class FreesSharedWindows(Allocator):
    """An allocator that frees a SWA page as soon as one of its requests releases it."""

    def release(self, kind: Kind, page: int) -> bool:
        """Give back a page. Frees a SWA page even if it is shared."""
        if kind is Kind.SWA:
            del self.sharers[kind, page]
        return super().release(kind, page)


class FreesSharedPages(Allocator):
    """An allocator that frees the full pages of a finished request even if they are shared."""

    def release(self, kind: Kind, page: int) -> bool:
        """Give back a page. Frees a full page even if it is shared."""
        if kind is Kind.FULL:
            del self.sharers[kind, page]
        return super().release(kind, page)


class KeepsEvictedPages(Allocator):
    """An allocator whose prefixes keep SWA pages that left the window."""

    def clear(self, seed: int) -> None:
        """Free everything, and forget which pages belong together."""
        self.beside: dict[int, int] = {}
        super().clear(seed)

    def extend(self, allocation: PageAllocation, length: int, count: int) -> list[int] | None:
        """Allocate slots, and save the SWA page of each full page."""
        slots = super().extend(allocation, length, count)
        pages = zip(allocation.full_pages, allocation.swa_pages, strict=True)
        self.beside.update((full, swa) for full, swa in pages if swa is not None)
        return slots

    def swa_pages_of(self, donor: PageAllocation, pages: int) -> list[int | None]:
        """Return the SWA pages of an allocation's first pages as they were when written."""
        return [self.beside.get(full) for full in donor.full_pages[:pages]]


class UnmapsSharedPages(Allocator):
    """An allocator that unmaps all pages that a request gives back, even shared ones."""

    def _free_swa(self, allocation: PageAllocation, pages: Sequence[int]) -> None:
        """Give back the SWA pages, and unmap the slots of their full pages."""
        super()._free_swa(allocation, pages)
        size = self.page_size
        slots = [allocation.full_pages[i] * size + place for i in pages for place in range(size)]
        self.order.write({"slot": slots}, self._unmap)


class FreesHeldPages(Allocator):
    """An allocator whose refill keeps the new full pages, and frees those in a running row."""

    def kept(self, allocation: PageAllocation, donor: PageAllocation, index: int) -> int:
        """Return the full page of the request that computed the tokens again."""
        return allocation.full_pages[index]


class FreesRefilledWindows(Allocator):
    """An allocator that frees a full page together with the SWA page that it was mapped to."""

    def refill_page(
        self, allocation: PageAllocation, donor: PageAllocation, index: int, swa: int
    ) -> int:
        """Refill a page, and release its SWA page, which the prefix has just taken."""
        freed = super().refill_page(allocation, donor, index, swa)
        self.release(Kind.SWA, swa)
        return freed


class RefillsBeyondEviction(Allocator):
    """An allocator whose refill treats all SWA slots of a request as live."""

    def computed(self, allocation: PageAllocation, index: int) -> int | None:
        """Return the mapped SWA page, which is page 0 if it was evicted."""
        return super().computed(allocation, index) or 0


class MatchesAcrossTombstones(Allocator):
    """An allocator whose match counts SWA pages before a tombstone as if they followed it."""

    def sees_all(self, donor: PageAllocation, pages: int, window: int) -> bool:
        """Whether the match finds a window of SWA pages.

        Ignores a tombstone after less than a window.
        """
        there, least = NEVER_SEEN, window - 1
        for page in donor.swa_pages[:pages]:
            if page is not None:
                there += self.page_size
            elif there >= least:
                there = 0
        return there >= least


class LinksNothing(Tables):
    """Index tables in which a shared prefix keeps the entries of the row's last owner."""

    def link(self, row: int, full: Tensor) -> None:
        """Write nothing."""


class LinksHalfOfEach(Tables):
    """Index tables that read the slots of a shared prefix as int32."""

    def link(self, row: int, full: Tensor) -> None:
        """Set the first columns of a row to the slots, read as int32."""
        super().link(row, full.view(torch.int32)[: full.shape[0]])


def prefix_bug(name: str, thread: str, mechanism: str, part: Part, differs: type) -> Bug:
    """Return a bug that shows if requests share prefixes."""
    return Bug(
        name=name,
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=thread,
        mechanism=mechanism,
        parts={part: differs},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
        features=frozenset({Feature.SHARING}),
        in_traffic=False,
    )


BUGS = (
    prefix_bug(
        "shared_window_released",
        pull("sgl-project/sglang", 36350),
        "A request releases the lock of a window that another request took. The SWA slots of "
        "a shared prefix are freed while the next query of the other request can see them.",
        Part.ALLOCATOR,
        FreesSharedWindows,
    ),
    prefix_bug(
        "shared_pages_freed",
        pull("Avarok-Cybersecurity/atlas", 373),
        "Freeing a prefix sets the reference count of its pages to zero instead of taking one "
        "reference away. A page that another request still reads is allocated again.",
        Part.ALLOCATOR,
        FreesSharedPages,
    ),
    prefix_bug(
        "evicted_window_matched",
        pull("sgl-project/sglang", 31486),
        "The prefix cache keeps SWA slots that were freed when they left the window. A request "
        "that matches the prefix owns slots that are free or belong to another request.",
        Part.ALLOCATOR,
        KeepsEvictedPages,
    ),
    prefix_bug(
        "shared_mapping_cleared",
        pull("sgl-project/sglang", 36457),
        "Freeing clears the full-to-SWA mapping of more slots than it frees. The SWA slots of "
        "a request that shares the prefix are still allocated, but nothing leads to them.",
        Part.ALLOCATOR,
        UnmapsSharedPages,
    ),
    prefix_bug(
        "refill_frees_held_pages",
        pull("sgl-project/sglang", 29352),
        "When a request refills a prefix whose SWA slots were evicted, the prefix takes its full "
        "slots too. The old ones are freed although the row of a running request names them.",
        Part.ALLOCATOR,
        FreesHeldPages,
    ),
    prefix_bug(
        "refilled_window_freed",
        pull("sgl-project/sglang", 27586),
        "A refill frees full slots that are no longer needed together with the SWA slots that "
        "they were mapped to. The refilled prefix has just taken these, and they are freed twice.",
        Part.ALLOCATOR,
        FreesRefilledWindows,
    ),
    prefix_bug(
        "refill_beyond_eviction",
        pull("sgl-project/sglang", 29350),
        "A request refills a prefix without saying how far its own SWA slots were evicted. Slots "
        "that it no longer has count as live, and the mapping leads to slot 0.",
        Part.ALLOCATOR,
        RefillsBeyondEviction,
    ),
    prefix_bug(
        "tombstone_in_window",
        pull("sgl-project/sglang", 17061),
        "A match counts the tokens since the last evicted SWA slots, and does not start again at "
        "evicted ones behind a short refilled stretch. The next query sees evicted slots.",
        Part.ALLOCATOR,
        MatchesAcrossTombstones,
    ),
    prefix_bug(
        "prefix_row_unwritten",
        pull("vllm-project/vllm-omni", 7877),
        "A prefix hit is planned before the rows it refers to are registered. The request reads "
        "its prefix through the entries of the row's previous owner.",
        Part.TABLES,
        LinksNothing,
    ),
    prefix_bug(
        "prefix_slots_width",
        pull("sgl-project/sglang", 11452),
        "The prefix cache hands out its slots in another integer width than the table expects. "
        "Every second slot is read as zero.",
        Part.TABLES,
        LinksHalfOfEach,
    ),
)
