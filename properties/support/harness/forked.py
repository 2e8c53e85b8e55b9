"""What the tests of the server of forks run in processes that it forks."""

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paritybit.harness.machine.forks import Forked

FOR_EVER = 3600.0

ANSWER_SECONDS = 120.0
"""Seconds after which a process that says nothing is taken to hang: it may begin CUDA first."""


WORK = 0.3
"""The processor time, in seconds, that `work` takes."""


def answer_of(process: Forked) -> Any:
    """Return what a forked process says next. Raises AssertionError if it says nothing for long."""
    assert process.pipe.poll(ANSWER_SECONDS), "a forked process says nothing"
    return process.pipe.recv()


def answers(pipe: Connection) -> None:
    """Answer questions about this process until no more are asked."""
    while True:
        what = pipe.recv()
        pipe.send(ANSWERS[what]())


def sleeps(pipe: Connection) -> None:
    """Do nothing for ever."""
    pipe.send(os.getpid())
    time.sleep(FOR_EVER)


def ends(_: Connection, code: int) -> None:
    """End with a code."""
    sys.exit(code)


def server_of_another() -> tuple[int, int]:
    """Return the parents of this process and of one that it asks for."""
    other = Forked(answers, variables=os.environ)
    other.pipe.send("parent")
    return os.getppid(), answer_of(other)


def gpus() -> list[str]:
    """Return the UUIDs of the GPUs that CUDA shows this process, which begins it."""
    torch = import_module("torch")
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"GPU-{one.uuid}" for one in properties]


def work() -> float:
    """Return the processor time of this process in seconds, which is WORK more than before."""
    until = time.process_time() + WORK
    while time.process_time() < until:
        pass
    return time.process_time()


def open_files() -> Sequence[str]:
    """Return what the files of this process are, but for the standard ones."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        if int(file.name) > 2:
            try:
                found.append(str(file.readlink()))
            except OSError:  # That of the list itself.
                continue
    return found


ANSWERS = {
    "parent": os.getppid,
    "server of another": server_of_another,
    "variables": lambda: dict(os.environ),
    "folder": lambda: str(Path.cwd()),
    "modules": lambda: sorted(sys.modules),
    "files": open_files,
    "work": work,
    "GPUs": gpus,
}
