"""A fault of an allocator, planted by tests."""

from paritybit.reference.allocator import Allocator, PageAllocation


class Leaking(Allocator):
    """An allocator that forgets the last page that it frees."""

    def free(self, allocation: PageAllocation) -> None:
        """Free all pages but one."""
        super().free(allocation)
        self.free_full.pop()
