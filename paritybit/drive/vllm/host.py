"""Copies of KV to the host and back, if the engine's device is a CPU.

On a GPU, a copy runs beside later forwards. Here, it runs some polls after its submission, which a
seed draws, or when the engine waits for it. An engine that reuses its blocks too early shows it.
"""

import ctypes
import importlib
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.engines.graphs import CpuEvent

LATEST = 4
"""The most polls before a copy that is next."""

CHANCE = Random(0)
"""Draws after how many polls a copy is made. The seed of the served engine is its own."""

OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector"

HANDLERS = "_store_handler", "_load_handler", "_expedited_load_handler"


class OnDevice(Tensor):
    """A tensor of the engine's device."""

    is_cuda = True


FAILING = 0.25
"""The share of loads that fail, if any do."""

failed = set[int]()
"""The numbers of the loads that have failed."""


class LateHandler:
    """Makes the copies of one of the engine's handlers late, in the order of their submission."""

    failing = False
    """Whether some loads fail."""

    def __init__(self, handler: Any, name: str) -> None:
        self.handler, self.fails = handler, name == HANDLERS[1]
        self.waiting, self.polls = list[tuple[Any, ...]](), 0
        self.over = list[Any]()
        """The results of the copies that have failed."""

    def transfer_async(self, *job: Any) -> bool:
        """Accept a copy."""
        self.waiting.append(job)
        return True

    def get_finished(self) -> Any:
        """Copy if it is time, and return the results of finished copies."""
        self.polls -= 1
        if self.waiting and self.polls <= 0:
            self.copy()
        over, self.over = self.over, []
        return [*over, *self.handler.get_finished()]

    def wait(self, jobs: set[int]) -> None:
        """Copy until these jobs are done."""
        while any(number in jobs for number, *_ in self.waiting):
            self.copy()
        self.handler.wait(jobs)

    def copy(self) -> None:
        """Make the next copy."""
        job = self.waiting.pop(0)
        if self.failing and self.fails and CHANCE.random() < FAILING:
            results: Any = importlib.import_module("vllm.v1.kv_offload.base")
            failed.add(job[0])
            self.over.append(results.TransferResult(job[0], success=True))
        else:
            self.handler.transfer_async(*job)
        self.polls = CHANCE.randint(1, LATEST)


def fail_loads() -> None:
    """Let some loads fail. The engine's connector reports them as other connectors do."""
    LateHandler.failing = True
    module: Any = importlib.import_module(OFFLOADING)
    results = module.OffloadingConnector.get_transfer_results

    def reported(one: Any, *given: Any) -> Any:
        jobs = dict(one.connector_worker._load_jobs)
        found = results(one, *given)
        found.failed_recving |= {jobs[number] for number in failed & jobs.keys()}
        failed.clear()
        return found

    module.OffloadingConnector.get_transfer_results = reported


class LateEvent:
    """The event after a copy, which is made after some polls, or when the engine waits."""

    def __init__(self, copy: Callable[[], object], polls: int) -> None:
        self.copies, self.polls = [copy], polls

    def query(self) -> bool:
        """Return whether the copy is made."""
        self.polls -= 1
        if self.polls <= 0:
            self.synchronize()
        return not self.copies

    def synchronize(self) -> None:
        """Make the copy."""
        while self.copies:
            self.copies.pop()()


def copy_late(backend: Any) -> None:
    """Let the simple connector's class for copies make them late, without a GPU."""
    launch = backend.launch_copy

    def start(one: Any, device: Any, host: Any, *others: Any) -> None:
        one._store_params, one._load_params = (device, host), (host, device)
        one._queue = SimpleNamespace(put=copy)

    def launch_later(*given: Any, events_list: Any, event_idx: int, **named: Any) -> None:
        now = partial(launch, *given, events_list=[], event_idx=event_idx, **named)
        events_list.append((event_idx, LateEvent(now, CHANCE.randint(1, LATEST))))

    def copy(item: Any) -> None:
        sources, targets, (there, here), *_ = item
        for name, tensor in there.items():
            here[name][targets] = tensor[sources]

    backend.init, backend.launch_copy = start, launch_later


def move(sources: Tensor, targets: Tensor, sizes: Tensor, **named: Any) -> None:
    """Copy memory between addresses."""
    for target, source, size in zip(*map(Tensor.tolist, (targets, sources, sizes)), strict=True):
        ctypes.memmove(target, source, size)


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
    create = spec.CPUOffloadingSpec.create_worker

    def created(one: Any, caches: Any) -> Any:
        for cache in caches.tensors:
            cache.tensor = cache.tensor.as_subclass(OnDevice)
        worker = create(one, caches)
        for name in HANDLERS:
            setattr(worker, name, LateHandler(getattr(worker, name), name))
        return worker

    spec.CPUOffloadingSpec.create_worker = created
    held.cuda.Stream.priority_range = lambda: (0, 0)
    simple: Any = importlib.import_module("vllm.v1.simple_kv_offload.copy_backend")
    copy_late(simple.DmaCopyBackend)
