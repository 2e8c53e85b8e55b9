"""Does jobs in forks of a process that has imported an engine, as this takes longest.

`Warm` runs in the process that starts engines, and `forked` in the process that forks: one per
engine and environment variables. A forkserver of the standard library has the variables of the
process that started it, and no guard.
"""

import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO

from paritybit.drive.job import MODULE
from paritybit.harness.machine.guard import OFFSET, Guarded, Reported
from paritybit.watch import journal
from paritybit.watch.settings import VARIABLE, parsed

OPTION = "--fork-for"
"""Precedes the descriptor of the connection among the arguments of a process that forks."""

PROGRAM = 4
"""The first words of a command are its program: Python, `-m`, MODULE, and the engine."""


def forks(words: Sequence[str]) -> bool:
    """Return whether a command can run in a fork of a process that has imported its engine."""
    return list(words[1:3]) == ["-m", MODULE]


class Fork(Reported):
    """A job in a fork of a guarded process, which reports it."""

    reporter: Guarded

    def left(self) -> list[int]:
        """Return the processes that the fork left behind. Without /proc, there are none."""
        return [one for one in self.reporter.left() if session_of(one) != self.reporter.pid]


def session_of(process: int) -> int | None:
    """Return the session of a process, or None if the process has ended."""
    with suppress(ProcessLookupError):
        return os.getsid(process)
    return None


class Warm:
    """Does jobs, one at a time. Those with an equal engine and variables share an import."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.importers: dict[str, tuple[Connection, Guarded]] = {}

    def start(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        output: IO[bytes],
        folder: Path,
    ) -> Fork:
        """Run a command in a folder. Its output is written to the file `output`."""
        settings = replace(parsed(variables[VARIABLE]), out=str(self.scratch))
        shared = {**variables, VARIABLE: settings.text()}
        key = json.dumps([words[:PROGRAM], shared], sort_keys=True)
        if key in self.importers and self.importers[key][1].poll() is not None:
            self.importers.pop(key)[1].end()
        if key not in self.importers:
            connection, other = Pipe()
            with other:
                number = other.fileno()
                program = [*words[:PROGRAM], OPTION, str(number)]
                process = Guarded(program, shared, output, passed=number)
            self.importers[key] = connection, process
        connection, process = self.importers[key]
        asked = {
            "job": words[PROGRAM],
            "watch": variables[VARIABLE],
            "output": str(Path(output.name).resolve()),
            "folder": str(folder.resolve()),
        }
        with suppress(ConnectionError):  # The process has ended. The fork gets its exit code.
            connection.send_bytes(json.dumps(asked).encode())
        return Fork(connection, process)

    def end(self) -> None:
        """End all processes."""
        for connection, process in self.importers.values():
            connection.close()
            process.end()


@contextmanager
def warm(scratch: Path, device: str) -> Iterator[Warm | None]:
    """Yield a `Warm`, or None for a GPU, where engines cannot be forked."""
    if device != "cpu":
        yield None
        return
    starts = Warm(scratch)
    try:
        yield starts
    finally:
        starts.end()


def forked(descriptor: int) -> str:
    """Fork this process for each job that comes, and return the file of the job in the fork.

    Does not return in this process, which ends when its connection is closed.
    """
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        while True:
            asked = json.loads(connection.recv_bytes())
            gc.freeze()  # A collection in the fork would copy every page that it touches.
            child = os.fork()
            if child == 0:
                become(asked, connection)
                return str(asked["job"])
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status) + OFFSET
            connection.send_bytes(str(code).encode())
    os._exit(0)


def become(asked: Mapping[str, str], connection: Connection) -> None:
    """Turn this fork into the process of a job, and report its id."""
    os.setsid()
    with open(asked["output"], "ab") as output:  # noqa: PTH123
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(asked["folder"])
    os.environ[VARIABLE] = asked["watch"]
    journal.go_on_in(parsed(os.environ[VARIABLE]).folder)
    connection.send_bytes(str(os.getpid()).encode())
    connection.close()
