"""Simulates the second of two data-parallel ranks, which has no process.

Its collectives end immediately, and it contributes zeros. At each step, its scheduler reports that
it is idle, prefills or decodes, as a seed determines. The first rank, which is real, therefore runs
idle forwards, and forwards with more tokens than its own.
"""

import importlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from paritybit.connectors.sglang.models import ALONE
from paritybit.drive.stand_ins.modules import found

SCHEDULERS = ("managers.scheduler_components.dp_attn", "managers.scheduler_dp_attn_mixin")
"""The modules in which the schedulers of several ranks synchronise, by release."""

dist: Any = torch.distributed

COMMUNICATORS = "sglang.srt.distributed.device_communicators"

CHANNELS = ("shm_broadcast", "pynccl")
"""Modules whose classes wait for other processes. Without them, the engine uses process groups."""


class AloneGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group with one real member. The others send zeros, or the result of `sent`."""

    sent: ClassVar[Callable[[Tensor], Tensor]] = torch.zeros_like

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._own, self._members = rank, size

    def size(self) -> int:
        """Return the number of members."""
        return self._members

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name of the backend."""
        return ALONE

    def barrier(self, *_: object, **__: object) -> Any:
        """Return immediately."""
        return done(None)

    def allreduce(self, tensors: list[Tensor], *_: object) -> Any:
        """Return the tensors unchanged, because the others contribute zeros."""
        return done(tensors)

    broadcast = allreduce_coalesced = allreduce

    def all_gather_single(self, output: Tensor, given: Tensor, *_: object) -> Any:
        """Gather the own part and the parts of the others."""
        for rank, part in enumerate(output.view(self._members, -1)):
            own = given if rank == self._own else AloneGroup.sent(given)
            part.copy_(own.reshape(-1))
        return done([output])

    def allgather(self, outputs: list[list[Tensor]], given: list[Tensor], *_: object) -> Any:
        """Gather the own part and the parts of the others, as a list."""
        for parts, own in zip(outputs, given, strict=True):
            for rank, part in enumerate(parts):
                part.copy_(own if rank == self._own else AloneGroup.sent(own))
        return done(outputs)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, *_: object) -> Any:
        """Return the own part of the input, because the others contribute zeros."""
        output.copy_(given.view(self._members, *output.shape)[self._own])
        return done([output])

    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single


def done(result: Any) -> Any:
    """Return completed work with a result."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    work: Any = torch._C._distributed_c10d
    return work._create_work_from_future(future)


def run_alone() -> None:
    """Create each process group of this process with simulated other members."""
    os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "0|0")
    dist.Backend.register_backend(
        ALONE, lambda store, rank, size, timeout: AloneGroup(rank, size), devices=["cpu"]
    )
    start, group = dist.init_process_group, dist.new_group

    def started(*_: object, world_size: int, rank: int, **named: Any) -> None:
        start(ALONE, store=dist.HashStore(), world_size=world_size, rank=rank)

    def grouped(*ranks: Any, **named: Any) -> Any:
        return group(*ranks, **{**named, "backend": ALONE, "pg_options": None})

    dist.init_process_group, dist.new_group = started, grouped
    dist.monitored_barrier = lambda *_, **__: None  # Only one backend supports it.
    queues: Any
    nccl: Any
    queues, nccl = (importlib.import_module(f"{COMMUNICATORS}.{name}") for name in CHANNELS)
    queues.MessageQueue.create_from_process_group = lambda *_, **__: None
    nccl.PyNcclCommunicator = lambda *_, **__: None
    module: Any = next(filter(None, (found(f"sglang.srt.{name}") for name in SCHEDULERS)))
    agree_with_another(module.MLPSyncBatchInfo)


IDLE, PREFILL, DECODE = "idle", "extend", "decode"

Step = tuple[str, int]
"""The mode of a rank in a step, and its number of tokens."""


def steps_of(seed: int, rows: int, chunk: int) -> Iterator[Step]:
    """Yield the steps of the other rank: it idles, or prefills and then decodes."""
    chance = random.Random(f"the other rank {seed}")
    while True:
        yield from [(IDLE, 0)] * chance.randint(0, 12)
        for _ in range(chance.randint(0, 2)):
            yield PREFILL, chance.randint(1, chunk)
        size = chance.randint(1, rows)
        yield from [(DECODE, size)] * chance.randint(1, 24)


class Other:
    """The scheduler of the other rank. `steps` are its next steps."""

    steps: ClassVar[Iterator[Step]] = iter(())


def agree_with_another(information: Any) -> None:
    """Make the class of the schedulers' messages gather the message of the other rank."""
    original = information.all_gather

    def all_gather(info: Any, device: Any, *arguments: Any, **named: Any) -> None:
        other = other_of(info, *next(Other.steps))
        AloneGroup.sent = lambda _: other._get_local_tensor(device=device)
        try:
            original(info, device, *arguments, **named)
        finally:
            AloneGroup.sent = torch.zeros_like

    information.all_gather = all_gather


def other_of(info: Any, kind: str, tokens: int) -> Any:
    """Return the message of the other rank, based on the message of this rank."""
    modes: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    said = {
        "num_tokens": tokens,
        "num_tokens_for_logprob": 1 if kind == PREFILL else tokens,
        "is_extend_in_batch": kind == PREFILL,
        "local_can_run_tbo": False,
        "local_forward_mode": modes[kind.upper()].value,
        "is_health_check": False,
    }
    known = {one.name for one in fields(info)}
    said |= {name: kind != PREFILL for name in known if name.startswith("can_")}
    return replace(info, **{name: value for name, value in said.items() if name in known})
