"""Prefill and decode in two engines of one machine, and a wire without a network between them.

The engine's own connector runs in both. The engine for decode plays, and is the parent of the one
for prefill. It steps it once per step of its own, so what happens depends on the seed alone. It
reads its memory some polls after a transfer was submitted.
"""

import ctypes
import importlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from paritybit.drive.vllm.host import CHANCE, FAILING, LATEST

PACKAGE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"

CLOCKED = "base_scheduler", "pull_scheduler", "base_worker", "pull_worker"
"""Its modules that look at the clock."""

SECONDS = 0.5
"""What a step takes by this clock."""

PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"

STEP, READ, NOTIFY, END = "step", "read", "notify", "end"
"""What the engine for decode asks of the other one."""

Ranges = list[tuple[int, int]]
"""Addresses, and numbers of bytes from there."""


class Wire:
    """What both processes have: their ends of a pipe, and their clocks."""

    pipe: ClassVar[Connection]
    decodes = True
    failing = False
    now = 0.0
    notes: ClassVar[list[bytes]] = []
    """The notifications that have arrived."""

    @classmethod
    def fork(cls) -> list[int]:
        """Fork the engine for prefill. Returns its process, or nothing in it."""
        mine, other = Pipe()
        child = os.fork()
        cls.pipe, cls.decodes = (mine, True) if child else (other, False)
        (other if child else mine).close()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ[PORT] = str(free.getsockname()[1])
        return [child] if child else []

    @classmethod
    def ask(cls, what: str, given: Any) -> Any:
        """Return what the engine for prefill answers. Raises EOFError if it has ended."""
        cls.pipe.send((what, given))
        return cls.pipe.recv()

    @classmethod
    def answer(cls, step: Callable[[Any], Any]) -> None:
        """Answer the engine for decode until it ends. `step` answers STEP."""
        while True:
            try:
                what, given = cls.pipe.recv()
            except EOFError:  # The other engine has failed.
                return
            if what == END:
                cls.pipe.send(None)
                return
            if what == READ:
                cls.pipe.send([ctypes.string_at(*one) for one in given])
            elif what == NOTIFY:
                cls.notes.append(given)
                cls.pipe.send(None)
            else:
                cls.pipe.send(step(given))

    @classmethod
    def tick(cls) -> None:
        """Let the time of a step pass."""
        cls.now += SECONDS


class Agent:
    """Stands in for an agent of NIXL. A transfer reads from the memory of the other process."""

    def __init__(self, name: str, config: object = None) -> None:
        self.name = name
        self.lists = list[np.ndarray[Any, Any]]()
        """Addresses and sizes, [n, 2] each, of the lists of descriptors."""
        self.transfers = list[tuple[Ranges, Ranges, bytes]]()
        self.polls = dict[int, int]()
        """Of each transfer under way, after how many polls its bytes move."""

    def get_agent_metadata(self) -> bytes:
        """Return the name."""
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        """Return the name of another agent."""
        return metadata.decode()

    def prep_xfer_dlist(self, agent: str, rows: Any, mem_type: str) -> int:
        """Keep a list of descriptors: rows of an address, size, device, stride and count."""
        parts = [
            np.stack([first + stride * np.arange(count), np.full(count, size)], 1)
            for first, size, _, stride, count in rows.astype(np.int64)
        ]
        self.lists.append(np.concatenate(parts))
        return len(self.lists) - 1

    def make_prepped_xfer(
        self, way: str, mine: int, here: Any, theirs: int, there: Any, notif_msg: bytes = b""
    ) -> int:
        """Prepare a transfer between descriptors of two lists."""
        ends = (self.lists[mine][here].tolist(), self.lists[theirs][there].tolist())
        self.transfers.append((*ends, notif_msg))
        return len(self.transfers) - 1

    def transfer(self, number: int) -> str:
        """Submit a transfer."""
        self.polls[number] = CHANCE.randint(1, LATEST)
        return "PROC"

    def check_xfer_state(self, number: int) -> str:
        """Return the state of a transfer, whose bytes may move now."""
        self.polls[number] -= 1
        if self.polls[number] > 0:
            return "PROC"
        here, there, note = self.transfers[number]
        if Wire.failing and CHANCE.random() < FAILING:
            return "ERR"
        for (address, size), held in zip(here, Wire.ask(READ, there), strict=True):
            ctypes.memmove(address, held, size)
        Wire.ask(NOTIFY, note)
        return "DONE"

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        """Notify the other engine."""
        Wire.ask(NOTIFY, notif_msg)

    def check_remote_metadata(self, agent: str) -> bool:
        """Return that another agent is known."""
        return True

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Return the notifications that have arrived."""
        found, Wire.notes = Wire.notes, []
        return {"": found}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: None  # Registrations and releases.


class Now:
    """Stands in for a pool of threads, and works at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *given: Any) -> "Future[Any]":
        """Return the future of work that is done."""
        future = Future[Any]()
        try:
            future.set_result(work(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None:
        """Do nothing."""


def connect(*, failing: bool) -> None:
    """Let the engine's connector use the wire."""
    Wire.failing = failing
    for name in CLOCKED:
        module: Any = importlib.import_module(f"{PACKAGE}.{name}")
        module.time = SimpleNamespace(perf_counter=lambda: Wire.now)
    worker: Any = importlib.import_module(f"{PACKAGE}.base_worker")
    worker.NixlWrapper, worker.nixl_agent_config = Agent, None
    worker.check_nixl_version = lambda version: None
    worker.ThreadPoolExecutor = Now
