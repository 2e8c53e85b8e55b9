"""KV that LMCache keeps in the engine's process, in memory of the host and in files.

A place is a token of a chunk: in memory by the address of the chunk, in files by its path.
"""

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import FILES, HOST
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe
from paritybit.connectors.vllm.tiers import Tiers
from paritybit.watch.facts import At, Copy, HostSlots

COPIERS = "VLLMPagedMemGPUConnectorV2", "VLLMPagedMemGPUConnectorV3"
"""The classes that copy whole chunks between slots and the host."""

BACKENDS = {"LocalCPUBackend", "LocalDiskBackend"}


class Caching(Tiers):
    """The part of an engine that follows LMCache."""

    cache: Callable[[], Any] = staticmethod(lambda: None)
    """Returns its engine."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.addresses = dict[int, int]()
        """The number of each address at which a chunk has begun."""

    def registers(self, result: Any, connector: Any) -> None:
        """Follow a cache when it gets the tensors of the KV pool."""
        cache = maybe(connector, "_lmcache_engine.lmcache_engine")
        if cache is None:
            return
        with self.needing():
            backends = cache.storage_manager.storage_backends.values()
            kinds = {type(one).__name__ for one in (*backends, cache.gpu_connector)}
            if unknown := kinds - BACKENDS - {*COPIERS}:
                raise NotRecognisedError(f"LMCache with {', '.join(sorted(unknown))}")
            self.cache, copier = weakref.ref(cache), type(cache.gpu_connector)
            self.hook(copier, "from_gpu", self.collects)
            self.hook(copier, "to_gpu", self.restores)
            for one in backends:
                if type(one).__name__ == "LocalDiskBackend":
                    self.hook(type(one.disk_worker), "submit_task", self.queues)
                    self.hook(type(one), "async_save_bytes_to_disk", self.writes)
                    self.hook(type(one), "read_file", self.reads)

    def awaits(self, original: Call, connector: Any) -> None:
        """Go on with the forward after the loads before it."""
        original()
        self.filled()

    def in_memory(self, address: int) -> At:
        """Return the places of a chunk in memory."""
        number, size = self.addresses.setdefault(address, len(self.addresses)), self.size
        return At(torch.arange(number * size, (number + 1) * size), HOST)

    def in_file(self, path: str) -> At:
        """Return the places of a chunk in a file."""
        assert self.watcher is not None
        return At(self.watcher.places(FILES, [path], self.size), FILES)

    @property
    def size(self) -> int:
        """The number of tokens in a chunk."""
        return int(self.cache().config.chunk_size)

    def copied(self, name: str, source: At, target: At, original: Call) -> None:
        """Report a copy of one chunk, during which the engine waits."""
        if self.watcher is not None and self.pool is not None:
            self.begins(name, source, target)
            original()
            for group in self.pool.names:
                self.watcher.moved(group, source, target)
            self.over([name])

    def begins(self, name: str, source: At, target: At) -> None:
        """Report that the engine begins a copy of a chunk."""
        if self.watcher is not None and self.pool is not None:
            copies = [Copy(group, source, target) for group in self.pool.names]
            self.watcher.begin_copies(name, copies)

    def collects(
        self, original: Call, copier: Any, chunk: Any, start: int, end: int, *, slot_mapping: Tensor
    ) -> None:
        """Report a chunk that is copied to the host."""
        self.complete()
        if self.watcher is not None:
            there = self.in_memory(chunk.data_ptr)
            there = At(there.slots[: end - start], HOST)
            self.copied(f"to {chunk.data_ptr}", At(slot_mapping[start:end]), there, original)

    def restores(
        self,
        original: Call,
        copier: Any,
        chunk: Any,
        start: int,
        end: int,
        *,
        slot_mapping: Tensor,
        vllm_cached_tokens: int = 0,
    ) -> None:
        """Report a chunk that is copied from the host, without the tokens that the engine has."""
        if self.watcher is not None:
            first = min(end, max(start, vllm_cached_tokens))
            there = self.in_memory(chunk.data_ptr).slots[first - start : end - start]
            mine = At(slot_mapping[first:end])
            self.copied(f"from {chunk.data_ptr}", At(there, HOST), mine, original)

    def queues(
        self, worker: Any, kind: str, task: Any, *, key: Any = None, memory_obj: Any = None
    ) -> None:
        """Report a chunk that will be written to a file."""
        if kind == "put" and self.watcher is not None:
            path = task.__self__._key_to_path(key)
            self.begins(path, self.in_memory(memory_obj.data_ptr), self.in_file(path))

    def writes(self, original: Call, backend: Any, key: Any, memory_obj: Any) -> None:
        """Report a chunk that is written to a file."""
        path, failed = backend._key_to_path(key), True
        if self.watcher is not None and self.pool is not None:
            source, target = self.in_memory(memory_obj.data_ptr), self.in_file(path)
            for group in self.pool.names:
                self.watcher.moved(group, source, target)
            try:
                original()
                failed = False
            finally:
                self.watcher.end_copies(path, failed)

    def reads(self, original: Call, backend: Any, key: Any, buffer: Any, path: str) -> None:
        """Report a chunk that is read from a file, if the file has all of it."""
        size = file.stat().st_size if (file := Path(path)).exists() else 0
        if self.watcher is not None and size >= len(buffer):
            address = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
            target = self.in_memory(address)
            self.copied(f"{path} to {address}", self.in_file(path), target, original)

    def caches(self) -> Mapping[str, HostSlots]:
        """Return the chunks in memory, if no copy of one is under way.

        Those that are allocated and that no key has are leaks.
        """
        disk = maybe(self.cache(), "storage_manager.storage_backends")
        if not disk or any(maybe(one, "disk_worker.put_tasks") for one in disk.values()):
            return {}
        memory = disk["LocalCPUBackend"]
        chunks = list(memory.hot_cache.values())
        allocator = memory.memory_allocator.pin_allocator
        size = sum(one.get_physical_size() for one in chunks)
        lost = allocator.total_allocated_size > size
        locked = sum(not one.can_evict for one in chunks)
        nothing, all_of_them = torch.empty(0, dtype=torch.int64), torch.arange(len(chunks))
        return {"LMCache": HostSlots(len(chunks) + lost, nothing, all_of_them, locked, HOST)}
