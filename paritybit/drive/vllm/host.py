"""Copies of KV to the host and back, if the engine's device is a CPU.

On a GPU, a copy runs beside later forwards. Here, it runs some polls after its submission, which a
seed draws, or when the engine waits for it. An engine that reuses its blocks too early shows it.
"""

import ctypes
import importlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.turns import Altered, TurnQueue, Turns
from paritybit.engines.graphs import CpuEvent, CpuStream

LATEST = 4
"""The most polls before a copy that is next."""

CHANCE = Random(0)
"""Draws after how many polls a copy is made. The seed of the served engine is its own."""

OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector"

SIMPLE = "vllm.v1.simple_kv_offload"

TIERS = "vllm.v1.kv_offload.tiering"

STEPS = (0, 0, 1, 2, 8)
"""How many turns the simple connector's thread may have at a step."""

HANDLERS = "_store_handler", "_load_handler", "_expedited_load_handler"


class OnDevice(Tensor):
    """A tensor of the engine's device."""

    is_cuda = True


FAILING, LOADS = 0.25, 0.5
"""The share of files and transfers that fail if any do, and that of loads from the host."""

failed = dict[int, list[int]]()
"""The blocks of the loads that have failed, by the number of the load."""


class LateHandler:
    """Makes the copies of one of the engine's handlers late, in the order of their submission."""

    failing = False
    """Whether some loads fail."""

    def __init__(self, handler: Any, name: str) -> None:
        self.handler, self.fails = handler, name == HANDLERS[1]
        # Then a request may have several stores under way.
        self.latest = 2 * LATEST if name == HANDLERS[0] else LATEST
        self.waiting, self.polls = list[tuple[Any, ...]](), 0
        self.over = list[Any]()
        """The results of the copies that have failed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler, name)

    def transfer_async(self, *job: Any) -> bool:
        """Accept a copy."""
        self.waiting.append(job)
        self.handler._transfer_events[job[0]] = LateEvent(self, job[0])
        return True

    def get_finished(self) -> Any:
        """Copy if it is time, and return the results of finished copies."""
        self.polls -= 1
        if self.waiting and self.polls <= 0:
            self.copy()
        over, self.over = self.over, []
        return [*over, *self.handler.get_finished()]

    def copy_until(self, job: int) -> None:
        """Copy until a job is done."""
        while any(number == job for number, *_ in self.waiting):
            self.copy()

    def copy(self) -> None:
        """Make the next copy."""
        job = self.waiting.pop(0)
        number, copies = job[0], True
        if self.failing and self.fails and CHANCE.random() < LOADS:
            device = job[2]
            # The engine maps blocks to requests if it has one KV group.
            copies = len(device.group_sizes) == 1 and number % 4 != 0
            some = CHANCE.randint(1, len(device.block_ids)) if copies else 0
            failed[number] = CHANCE.sample([*device.block_ids], some)
        if copies:
            self.handler.transfer_async(*job)
        else:
            results: Any = importlib.import_module("vllm.v1.kv_offload.base")
            self.handler._transfer_events.pop(number)
            self.over.append(results.TransferResult(number, success=True))
        self.polls = CHANCE.randint(1, self.latest)


def fail_loads() -> None:
    """Let some loads fail. The engine's connector reports them as other connectors do.

    That is by request, and where the engine can tell whose blocks they are, often by block: then
    the load brings the others.
    """
    LateHandler.failing = True
    module: Any = importlib.import_module(OFFLOADING)
    kind, blocks = module.OffloadingConnector, set[int]()
    results = kind.get_transfer_results

    def reported(one: Any, *given: Any) -> Any:
        jobs = dict(one.connector_worker._load_jobs)
        found = results(one, *given)
        found.failed_recving |= {jobs[n] for n in failed.keys() & jobs.keys() if not failed[n]}
        blocks.update(*failed.values())
        failed.clear()
        return found

    def with_errors(one: Any) -> set[int]:
        found = {*blocks}
        blocks.clear()
        return found

    kind.get_transfer_results, kind.get_block_ids_with_load_errors = reported, with_errors


class CopyStream(CpuStream):
    """A stream for copies."""

    cuda_stream = 0
    priority_range = staticmethod(lambda: (0, 0))


class LateEvent:
    """The event after a job that waits. The engine may wait for it."""

    def __init__(self, handler: LateHandler, number: int) -> None:
        self.handler, self.number = handler, number

    def synchronize(self) -> None:
        """Copy until the job is done, and wait for its own event."""
        self.handler.copy_until(self.number)


def copy_in_turns(backend: Any, memory: Any, worker: Any) -> None:
    """Let the simple connector's own thread copy in turns, some at each step.

    The arguments are its modules for the thread, for copies, and for workers.
    """
    backend.threading = Altered(threading, Thread=Turns)
    backend.queue = Altered(queue, SimpleQueue=TurnQueue)
    memory._batch_memcpy = copied, 1
    worker.torch = Altered(torch, cuda=Altered(torch.cuda, Stream=CopyStream))
    kind = worker.SimpleCPUOffloadWorker
    finished = kind.get_finished

    def begin(*given: Any) -> None:
        Turns.held.turns.pause()
        memory.copy_blocks(*given)

    def step(one: Any, *given: Any) -> Any:
        for thread in [*Turns.all]:
            for _ in range(CHANCE.choice(STEPS)):
                thread.turn()
        return finished(one, *given)

    backend.copy_blocks, kind.get_finished = begin, step


def copied(targets: int, sources: int, sizes: int, count: int, *others: object) -> int:
    """Copy memory between addresses, which are at addresses themselves."""
    numbers = ((ctypes.c_uint64 * count).from_address(at) for at in (targets, sources, sizes))
    for target, source, size in zip(*numbers, strict=True):
        ctypes.memmove(target, source, size)
    return 0


def move(sources: Tensor, targets: Tensor, sizes: Tensor, **named: Any) -> None:
    """Copy memory between addresses."""
    for target, source, size in zip(*map(Tensor.tolist, (targets, sources, sizes)), strict=True):
        ctypes.memmove(target, source, size)


class LateFiles:
    """Stands in for the threads of a tier of files: it does their work late, in any order."""

    def __init__(self, *_: object, **__: object) -> None:
        self.waiting, self.polls = list[tuple[Any, ...]](), 0
        self.over = list[tuple[int, bool, float]]()

    def enqueue_load(self, job: int, count: int, tasks: Iterable[Callable[[], None]]) -> None:
        """Accept a job."""
        self.waiting.append((job, *tasks))

    enqueue_store = enqueue_load

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """Do a job if it is time, and let threads of the engine take turns. Returns what is over.

        Those look for files.
        """
        for thread in [*Turns.all]:
            for _ in range(CHANCE.choice(STEPS)):
                thread.turn()
        self.polls -= 1
        if self.waiting and self.polls <= 0:
            self.work()
        over, self.over = self.over, []
        return over

    def work(self) -> None:
        """Do a job."""
        job, *tasks = self.waiting.pop(CHANCE.randrange(len(self.waiting)))
        right = True
        for task in tasks:
            try:
                task()
            except OSError:
                right = False
        self.over.append((job, right, 0.0))
        self.polls = CHANCE.randint(1, LATEST)

    def wait_idle(self) -> None:
        """Do all jobs."""
        while self.waiting:
            self.work()

    def shutdown(self, **_: object) -> None:
        """Forget all jobs."""
        self.waiting.clear()


def spoiling(load: Callable[..., None]) -> Callable[..., None]:
    """Return a function that reads files, of which one may be lost or cut just before."""

    def loaded(paths: Sequence[str], *given: Any) -> None:
        file = Path(CHANCE.choice(paths))
        if CHANCE.random() < FAILING and file.exists():
            if CHANCE.random() < 1 / 2:
                file.unlink()
            else:
                os.truncate(file, CHANCE.randrange(file.stat().st_size))
        load(paths, *given)

    return loaded


def unnamed(region: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that opens shared memory, whose file goes once it was opened twice."""

    def opened(*given: Any, **named: Any) -> Any:
        found = region(*given, **named)
        if not found._creator:
            found._unlink()
        return found

    return opened


def late_worker(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that creates a worker whose copies are late."""

    def created(one: Any, caches: Any) -> Any:
        for cache in caches.tensors:
            cache.tensor = cache.tensor.as_subclass(OnDevice)
        worker = create(one, caches)
        for name in HANDLERS:
            setattr(worker, name, LateHandler(getattr(worker, name), name))
        return worker

    return created


def reuse_soon() -> None:
    """Let the blocks of every second request that ends be the next ones, as in a full pool.

    Those that a window has left stay the last ones.
    """
    kind: Any = importlib.import_module("vllm.v1.core.kv_cache_utils").FreeKVCacheBlockQueue
    manager: Any = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
    last, first, free = kind.append_n, kind.prepend_n, manager.free
    append = last

    def freed(queue: Any, blocks: Any) -> Any:
        return append(queue, blocks)

    def ended(one: Any, request: Any) -> Any:
        nonlocal append
        append = first if CHANCE.random() < 1 / 2 else last
        try:
            return free(one, request)
        finally:
            append = last

    kind.append_n, manager.free = freed, ended


def keep_on_host() -> None:
    """Let the engine keep KV on the host."""
    held: Any = torch
    held.Event = CpuEvent
    importlib.import_module("vllm._custom_ops").swap_blocks_batch = move  # type: ignore[attr-defined]
    spec: Any = importlib.import_module("vllm.v1.kv_offload.cpu.spec")
    # A GPU, but no memory that several processes share.
    spec.current_platform = SimpleNamespace(
        is_cuda_alike=lambda: True, is_rocm=lambda: True, is_xpu=lambda: False
    )
    tiering: Any = importlib.import_module(f"{TIERS}.spec")
    for kind in (spec.CPUOffloadingSpec, tiering.TieringOffloadingSpec):
        kind.create_worker = late_worker(kind.create_worker)
    tiering.SharedOffloadRegion = unnamed(tiering.SharedOffloadRegion)
    lookups: Any = importlib.import_module(f"{TIERS}.async_lookup")
    lookups.threading = Altered(threading, Thread=Turns)
    lookups.queue = Altered(queue, SimpleQueue=TurnQueue)
    files: Any = importlib.import_module(f"{TIERS}.fs.manager")
    files.DualQueueThreadPool = LateFiles
    if hasattr(files, "batch_load_block"):  # Older releases read block by block.
        files.batch_load_block = spoiling(files.batch_load_block)
    names = "copy_backend", "cuda_mem_ops", "worker"
    backend, memory, worker = (importlib.import_module(f"{SIMPLE}.{name}") for name in names)
    copy_in_turns(backend, memory, worker)
