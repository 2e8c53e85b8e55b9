"""vLLM's allocator for sleep, over memory of the host.

Memory that a sleeping engine gives up keeps its address and gets other bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GARBAGE = 0x3C
"""The byte that fills memory that was given up. Floats of such bytes are finite."""

DEFERRED = "weights", "kv_cache"
"""The tags whose memory may come back later than all other."""


class Noting(TorchDispatchMode):
    """Notes the storages that operations allocate."""

    def __init__(self, note: Callable[[UntypedStorage], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note what is not a part of its arguments."""
        made = function(*args, **(kwargs or {}))
        # It is the only operation for what `torch.tensor` has just allocated.
        fresh = function is torch.ops.aten.lift_fresh.default
        given = {} if fresh else storages((args, kwargs))
        for address, storage in storages(made).items():
            if address not in given:
                self.note(storage)
        return made


class Memory:
    """The memory that was allocated in the contexts of `use_memory_pool`, by tag."""

    def __init__(self) -> None:
        self.tag: str | None = None
        self.held: dict[int, tuple[str, StorageWeakRef]] = {}
        self.kept: dict[int, tuple[str, Tensor]] = {}

    @contextmanager
    def use_memory_pool(self, tag: str = "default") -> Iterator[None]:
        """Note what is allocated in this context."""
        before, self.tag = self.tag, tag
        try:
            with Noting(self.note) if before is None else nullcontext():
                yield
        finally:
            self.tag = before

    def note(self, storage: UntypedStorage) -> None:
        """Note a storage that was allocated now."""
        self.held[storage.data_ptr()] = str(self.tag), StorageWeakRef(storage)

    def bytes_of(self) -> Iterator[tuple[int, str, Tensor]]:
        """Yield the address, the tag and the bytes of all memory that is still in use."""
        for address, (tag, held) in self.held.items():
            storage = UntypedStorage._new_with_weak_ptr(held.cdata)
            if storage is not None and storage.data_ptr() == address:
                yield address, tag, torch.empty(0, dtype=torch.uint8).set_(storage)

    def sleep(self, offload_tags: Sequence[str] = ()) -> None:
        """Give up all memory. That with the tags is kept elsewhere until the engine wakes up."""
        for address, tag, found in self.bytes_of():
            if tag in offload_tags:
                self.kept[address] = tag, found.clone()
            found.fill_(GARBAGE)

    def discard(self, tags: Sequence[str]) -> None:
        """Give up the memory with these tags."""
        for _, tag, found in self.bytes_of():
            if tag in tags:
                found.fill_(GARBAGE)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back what was kept: that with the tags, and all that is never deferred."""
        for address, _, found in self.bytes_of():
            tag, kept = self.kept.get(address, ("", found))
            if tags is None or tag in tags or tag not in DEFERRED:
                found.copy_(kept)
                self.kept.pop(address, None)

    def get_current_usage(self) -> int:
        """Return 0, because an engine starts with memory of its own."""
        return 0


MEMORY = Memory()


def storages(given: Any) -> dict[int, UntypedStorage]:
    """Return the storages of all tensors in some values, by address."""
    found = (one.untyped_storage() for one in tree_leaves(given) if isinstance(one, Tensor))
    return {one.data_ptr(): one for one in found if one.data_ptr()}
