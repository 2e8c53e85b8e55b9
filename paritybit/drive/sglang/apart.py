"""Two engines of sglang on one machine, one for prefill and one for decode, and the wire between.

The engine's own backend transfers KV. Only what Mooncake and ZeroMQ do is replaced: bytes and
messages cross a pipe, at polls that the seed draws. Both engines poll at the same time.
"""

import ctypes
import importlib
import os
import queue
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, ClassVar

from paritybit.drive.engine import PlayedError
from paritybit.drive.sglang.late import Clock
from paritybit.drive.stand_ins.installing import StandIn, put
from paritybit.drive.stand_ins.turns import Altered, TurnQueue, Turns

HOST = "127.0.0.1"

ROLES = ("decode", "prefill")
"""The engine of each process. The first one plays the requests, and forks the other."""

PAUSES = (0, 1, 2, 4, 8)
"""How often a transfer may wait for its thread's next turn."""

REST = 24
"""Polls without a request until both engines have ended all of them."""

FAILING = 0.02
"""The share of transfers that fail in the middle."""

ARRIVING = (0, 0, 4, 16, 64)
"""How many messages, or blocks of KV, may arrive at a poll."""

PUNCTUAL = 0.8
"""The share of requests that arrive at the same poll as the one before."""

VARIABLES = {
    "SGLANG_HOST_IP": HOST,
    # A lost heartbeat would depend on the machine.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "1000000",
    "SGLANG_ENABLE_FAILED_SESSION_PROBE": "1",
    "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "1",
}
"""Environment variables of both engines."""

DISAGGREGATION = "sglang.srt.disaggregation"

Message = tuple[Any, ...]
"""A message for a socket with its port and its parts, or bytes that the other engine writes with
their address."""


def paused() -> None:
    """End the turn of the current thread."""
    Turns.held.turns.pause()


class Socket:
    """A socket of ZeroMQ. What it sends crosses the wire."""

    def __init__(self) -> None:
        self.inbox = deque[list[bytes]]()
        self.port = 0

    def connect(self, endpoint: str) -> None:
        """Send to an endpoint from now on."""
        self.port = int(endpoint.rpartition(":")[2])

    def send_multipart(self, parts: list[bytes], *_: Any) -> None:
        """Send a message."""
        Wire.send(self.port, [*map(bytes, parts)])

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """Return the next message. A thread waits for it, and all others see that none is there."""
        while not self.inbox:
            if flags:
                raise importlib.import_module("zmq").Again
            paused()
        return self.inbox.popleft()

    def get_monitor_socket(self, *_: Any) -> "Socket":
        """Return a socket that never gets a message."""
        return Socket()

    def close(self, *_: Any, **__: Any) -> None:
        """Close it."""

    setsockopt = close


class Context:
    """A context of ZeroMQ."""

    @staticmethod
    def socket(*_: Any) -> Socket:
        """Return a socket."""
        return Socket()

    @staticmethod
    def set(*_: Any) -> None:
        """Set an option."""


class Stopping(threading.Event):
    """An event for which a thread waits by turns."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is set after one turn."""
        paused()
        return self.is_set()


class WaitingQueue(TurnQueue):
    """A queue at which a thread waits for an item, by turns."""

    def get(self, *arguments: Any, **named: Any) -> Any:
        """Return the next item."""
        while True:
            with suppress(queue.Empty):
                return super().get()


class TransferEngine:
    """Mooncake's. It writes to the memory of the other engine, block by block, in any order."""

    def initialize(self, *_: Any) -> int:
        """Do nothing."""
        return 0

    register_memory = batch_register_memory = unregister_memory = initialize
    batch_unregister_memory = send_probe = initialize

    def get_rpc_port(self) -> int:
        """Return a port, which is part of the name of this engine."""
        return Wire.port

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        """Write blocks. Returns -1 if it failed before the last one, else 0."""
        blocks, chance = [*zip(sources, targets, lengths, strict=True)], Clock.chance
        chance.shuffle(blocks)
        waits = [chance.randrange(len(blocks)) for _ in range(chance.choice(PAUSES))]
        fails = len(blocks) if chance.random() >= FAILING else chance.randrange(len(blocks))
        for number, (source, target, length) in enumerate(blocks):
            for _ in range(waits.count(number)):
                paused()
            if number == fails:
                return -1
            Wire.send(0, (target, ctypes.string_at(source, length)))
        return 0


class Wire:
    """The end of the pipe in this process."""

    pipe: Connection | None = None
    port = 1
    bound = Socket()
    out: ClassVar[list[Message]] = []
    late: ClassVar[deque[Message]] = deque()
    requests: ClassVar[deque[Any]] = deque()
    """Requests for this engine that are late."""
    quiet = False
    """Whether the other engine has nothing to do."""

    @classmethod
    def send(cls, port: int, content: Any) -> None:
        """Send a message to a port, or bytes to port 0."""
        cls.out.append((port, content))

    @classmethod
    def bind(cls, *_: Any, **__: Any) -> tuple[int, Socket]:
        """Return the port of this engine and its socket."""
        return cls.port, cls.bound

    @classmethod
    def rests(cls) -> bool:
        """Return whether the other engine has nothing to do, and nothing is late."""
        return cls.quiet and not cls.late and not cls.requests

    @classmethod
    def exchange(cls, requests: list[Any] | None, quiet: bool) -> list[Any]:
        """Exchange messages with the other engine, and return the requests that arrive here.

        `requests` are those of the player, if it is in this process. None ends the other engine,
        where this raises PlayedError. `quiet`: this engine has nothing to do.
        """
        assert cls.pipe is not None
        out, cls.out = cls.out, []
        if cls.port == 1:
            cls.pipe.send((requests, out))
            if requests is None:
                return []
            messages, cls.quiet = cls.pipe.recv()
        else:
            requests, messages = cls.pipe.recv()
            if requests is None:
                raise PlayedError
            coming = cls.late or cls.requests or requests or messages
            cls.pipe.send((out, quiet and not coming))
        cls.late.extend(messages)
        cls.requests.extend(requests)
        for _ in range(Clock.chance.choice(ARRIVING)):
            if cls.late:
                cls.arrives(*cls.late.popleft())
        arriving = []
        while cls.requests and Clock.chance.random() < PUNCTUAL:
            arriving.append(cls.requests.popleft())
        return arriving

    @classmethod
    def arrives(cls, port: int, content: Any) -> None:
        """Put a message in the socket, or write bytes."""
        if port:
            cls.bound.inbox.append(content)
        else:
            target, data = content
            ctypes.memmove(target, data, len(data))


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def replace_wire() -> None:
    """Replace Mooncake, ZeroMQ, threads and clocks of the transfers.

    Buffers that are freed come next, as if there were no others.
    """
    os.environ.update(VARIABLES)
    package: Any = ModuleType("mooncake")
    package.engine = engine = ModuleType("mooncake.engine")
    vars(engine)["TransferEngine"] = TransferEngine
    sys.modules |= {"mooncake": package, "mooncake.engine": engine}
    clock = Altered(time, time=Clock.monotonic, monotonic=Clock.monotonic)
    common: Any = importlib.import_module(f"{DISAGGREGATION}.common.conn")
    common.zmq = Altered(common.zmq, Context=Context)
    common.CommonKVReceiver._ctx = Context
    common.get_zmq_socket_on_host = Wire.bind
    mooncake: Any = importlib.import_module(f"{DISAGGREGATION}.mooncake.conn")
    mooncake.threading = Altered(threading, Thread=Turns, Event=Stopping)
    mooncake.FastQueue = WaitingQueue
    decode: Any = importlib.import_module(f"{DISAGGREGATION}.decode")
    common.time = mooncake.time = decode.time = clock
    buffers: Any = importlib.import_module(f"{DISAGGREGATION}.utils").ReqToMetadataIdxAllocator
    buffers.free = lambda one, index: one.free_slots.appendleft(index)


WIRE = StandIn(
    "transfers of KV between prefill and decode: a pipe, some polls late",
    "a machine without a fast network has no Mooncake, and the same seed must give the same order",
    replace_wire,
)


def begin(pipe: Connection, role: str, port: int) -> None:
    """Begin an engine with a role, at one end of the pipe. That of prefill serves its address."""
    put((WIRE,))
    Wire.pipe, Wire.port = pipe, 1 + ROLES.index(role)
    if role == "prefill":
        common: Any = importlib.import_module(f"{DISAGGREGATION}.common.conn")
        common.CommonKVBootstrapServer(HOST, port)
