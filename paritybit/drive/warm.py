"""Starts engines in forks of a process that has already imported them, as the import takes longest.

`Warm` runs in the process that starts engines, and `forked` in the process that forks. They share a
connection. The answers to a command are the process id of its fork, then its exit code.
"""

import gc
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO

from paritybit.harness.machine.guard import Guarded
from paritybit.watch import journal
from paritybit.watch.settings import VARIABLE, parsed

OPTION = "--fork-for"
"""The first argument of a process that forks. The second is the descriptor of its connection."""

PROGRAM = 3
"""The first words of a command are its program: Python, `-m`, and a module."""

SERVES = "paritybit.drive."
"""The prefix of the modules that serve an engine. They can fork."""


def forks(words: Sequence[str]) -> bool:
    """Return whether a command can run in a fork of a process that has imported its engine."""
    return list(words[1:2]) == ["-m"] and words[2].startswith(SERVES)


class Importer:
    """A process that imports an engine, and forks. Its output is written to `output`."""

    def __init__(
        self, program: Sequence[str], variables: Mapping[str, str], output: IO[bytes]
    ) -> None:
        """Start the process."""
        self.connection, other = Pipe()
        with other:
            number = other.fileno()
            words = [*program, OPTION, str(number)]
            self.process = Guarded(words, variables, output, passed=number)

    def hear(self, seconds: float | None) -> int | None:
        """Return the next number that the process sends, or None if it sends none in time.

        Raises EOFError if the process has ended.
        """
        try:
            return int(self.connection.recv_bytes()) if self.connection.poll(seconds) else None
        except ConnectionError as error:
            raise EOFError from error

    def end(self) -> None:
        """End the process, and all processes of its forks."""
        self.connection.close()
        self.process.end()


class Fork:
    """A command in a fork of an importer, with an interface like `subprocess.Popen`."""

    def __init__(self, importer: Importer) -> None:
        self.importer = importer
        self.pid = importer.process.pid
        """The process id of the fork, or of the importer until there is a fork."""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        while self.returncode is None:
            try:
                said = self.importer.hear(timeout)
            except EOFError:
                self.returncode = self.importer.process.wait()
                break
            if said is None:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            if self.pid == self.importer.process.pid:
                self.pid = said
            else:
                self.returncode = said
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the fork, or to the importer while there is no fork yet."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def left(self) -> list[int]:
        """Return the processes that the fork left behind. Without /proc, there are none."""
        importer = self.importer.process
        return [one for one in importer.left() if session_of(one) != importer.pid]


def session_of(process: int) -> int | None:
    """Return the session of a process, or None if the process has ended."""
    with suppress(ProcessLookupError):
        return os.getsid(process)
    return None


class Warm:
    """Starts commands of engines, one at a time. Those with equal variables share an importer."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.importers: dict[str, Importer] = {}

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
        importer = self.importers.get(key)
        if importer is not None and importer.process.poll() is not None:
            importer.end()
            importer = None
        if importer is None:
            self.importers[key] = importer = Importer(words[:PROGRAM], shared, output)
        asked = {
            "words": list(words[PROGRAM:]),
            "watch": variables[VARIABLE],
            "output": str(Path(output.name).resolve()),
            "folder": str(folder.resolve()),
        }
        with suppress(ConnectionError):  # The importer has ended. The fork gets its exit code.
            importer.connection.send_bytes(json.dumps(asked).encode())
        return Fork(importer)

    def end(self) -> None:
        """End all importers."""
        for importer in self.importers.values():
            importer.end()


@contextmanager
def warm(scratch: Path, device: str) -> Iterator[Warm | None]:
    """Yield a `Warm` for a device, or None if engines cannot be forked there, as on a GPU."""
    if device != "cpu":
        yield None
        return
    starts = Warm(scratch)
    try:
        yield starts
    finally:
        starts.end()


def forked(descriptor: int) -> list[str]:
    """Fork this process for each requested command, and return the command's options in the fork.

    Does not return in this process, which ends when its connection is closed.
    """
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        while True:
            asked = json.loads(connection.recv_bytes())
            gc.freeze()  # A collection in the fork would copy every page that it touches.
            child = os.fork()
            if child == 0:
                return become(asked, connection)
            _, status = os.waitpid(child, 0)
            connection.send_bytes(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(asked: Mapping[str, object], connection: Connection) -> list[str]:
    """Turn this process into the process of a command, and return the command's options."""
    os.setsid()
    with open(str(asked["output"]), "ab") as output:  # noqa: PTH123
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(str(asked["folder"]))
    os.environ[VARIABLE] = str(asked["watch"])
    journal.go_on_in(parsed(os.environ[VARIABLE]).folder)
    connection.send_bytes(str(os.getpid()).encode())
    connection.close()
    words = asked["words"]
    assert isinstance(words, list)
    return words
