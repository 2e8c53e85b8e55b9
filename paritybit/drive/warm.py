"""Engines that start from a fork of a process which has imported them: importing takes longest.

`Warm` is the side of who starts engines, `forked` that of the process which forks. They share a
connection. Each command asked for is answered by the process id of its fork, then by its exit code.
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

from paritybit.watch import journal
from paritybit.watch.settings import VARIABLE, parsed

OPTION = "--fork-for"
"""The first word of a process that forks; the second is the descriptor of its connection."""

PROGRAM = 3
"""So many words of a command are its program: Python, `-m`, and a module. The rest are options."""

SERVES = "paritybit.drive."
"""How modules are called that serve an engine: they fork."""


def forks(words: Sequence[str]) -> bool:
    """Whether a command can be run by a fork of what its program has imported."""
    return list(words[1:2]) == ["-m"] and words[2].startswith(SERVES)


class Importer:
    """A process that has imported an engine, or is about to. What it prints goes to `output`."""

    def __init__(
        self, program: Sequence[str], variables: Mapping[str, str], output: IO[bytes]
    ) -> None:
        """Start it."""
        self.connection, other = Pipe()
        with other:
            self.process = subprocess.Popen(
                [*program, OPTION, str(other.fileno())],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(other.fileno(),),
            )

    def hear(self, seconds: float | None) -> int | None:
        """Return the next number that it says; None if it says none in time.

        Raises EOFError if it has ended.
        """
        try:
            return int(self.connection.recv_bytes()) if self.connection.poll(seconds) else None
        except ConnectionError as error:
            raise EOFError from error

    def end(self) -> None:
        """End it."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


class Fork:
    """A command that an importer runs in a fork of its own: what is asked of `subprocess.Popen`."""

    def __init__(self, importer: Importer) -> None:
        self.importer = importer
        self.pid = importer.process.pid
        """That of the importer until there is a fork."""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired if it takes longer."""
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
        """Send a signal to it, or to the importer while there is no fork yet."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


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
        """Run the words of a command in a folder; what it prints goes to the file `output`."""
        settings = replace(parsed(variables[VARIABLE]), out=str(self.scratch))
        shared = {**variables, VARIABLE: settings.text()}
        key = json.dumps([words[:PROGRAM], shared], sort_keys=True)
        importer = self.importers.get(key)
        if importer is None or importer.process.poll() is not None:
            self.importers[key] = importer = Importer(words[:PROGRAM], shared, output)
        asked = {
            "words": list(words[PROGRAM:]),
            "watch": variables[VARIABLE],
            "output": str(Path(output.name).resolve()),
            "folder": str(folder.resolve()),
        }
        with suppress(ConnectionError):  # It ended at once: so will the fork, with its exit code.
            importer.connection.send_bytes(json.dumps(asked).encode())
        return Fork(importer)

    def end(self) -> None:
        """End all importers."""
        for importer in self.importers.values():
            importer.end()


@contextmanager
def warm(scratch: Path, device: str) -> Iterator[Warm | None]:
    """Give what starts engines on a device; None where they cannot be forked, as on a GPU."""
    if device != "cpu":
        yield None
        return
    starts = Warm(scratch)
    try:
        yield starts
    finally:
        starts.end()


def forked(descriptor: int) -> list[str]:
    """Return the options of each command that is asked for, in a fork of this process.

    Does not return in this process: it ends when no more can be asked for.
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
    """Make this process that of a command, and return its options."""
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
