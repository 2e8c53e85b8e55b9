"""Runs a command whose processes all end with the process that asked for it.

It is also a separate program: `guard.py DESCRIPTOR PASSED COMMAND...`. The program starts the
command, sends its process id and later its exit code, and kills all processes of the command when
the descriptor is closed. The system closes the descriptor when the other process ends in any way,
also by SIGKILL.

Orphans of the command become children of the guard (on Linux, it is a subreaper). It therefore
finds processes that left their session, and those that do not run Python. It imports nothing of
paritybit, because it is run by path.
"""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36

PAUSE = 0.05
"""Seconds between two checks whether a process has ended."""

LONGEST_END = 10.0
"""The most seconds until killed processes are gone."""

OFFSET = 1000
"""What is added to an exit code that is sent. A number below zero is an error."""


class Reported:
    """A command whose start and end another process reports, with an interface like Popen's.

    A process id comes first, then the exit code with OFFSET added.
    """

    def __init__(self, connection: Connection, reporter: Any) -> None:
        self.connection, self.reporter = connection, reporter
        self.started = False
        self.pid: int = reporter.pid
        """The process id of the command, or of the reporter until the command has started."""
        self.returncode: int | None = None

    def hear(self, seconds: float | None) -> bool:
        """Take the next number. Returns False if none comes in time.

        If the reporter ends, its exit code counts.
        """
        try:
            if not self.connection.poll(seconds):
                return False
            heard = int(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.returncode = self.reporter.wait()
            return True
        if not self.started:
            self.started, self.pid = True, heard
        else:
            self.returncode = heard - OFFSET
        return True

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        while self.returncode is None:
            if not self.hear(timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command, or to the reporter while there is no command yet."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Guarded(Reported):
    """A command under a guard. It is the first process of a session."""

    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        output: IO[bytes] | None = None,
        folder: Path | None = None,
        passed: int | None = None,
    ) -> None:
        """Start a command, in `folder` if it is passed. It inherits the descriptor `passed`.

        It inherits stdin, stdout and stderr. With `output`, its output is written there.

        Raises OSError if the program cannot be executed, and ValueError for a null byte.
        """
        connection, other = Pipe()
        descriptors = [other.fileno(), *([] if passed is None else [passed])]
        numbers = [str(other.fileno()), "-" if passed is None else str(passed)]
        with other:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *numbers, *words],
                env=dict(variables),
                cwd=folder,
                stdin=None if output is None else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=descriptors,
            )
        super().__init__(connection, self.guard)
        self.hear(None)
        error = errno.ECHILD if not self.started else -self.pid
        if error > 0:
            self.end()
            raise OSError(error, os.strerror(error))

    def left(self) -> list[int]:
        """Return the processes under the guard. Without /proc, there are none."""
        return list(descendants(self.guard.pid))

    def end(self) -> None:
        """End the command and all of its processes."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.guard.wait(LONGEST_END)
        self.guard.kill()
        self.guard.wait()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL


def descendants(ancestor: int) -> Iterator[int]:
    """Yield the running processes that descend from a process, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            state, parent, *_ = entry.read_text().rpartition(")")[2].split()
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found = [ancestor]
    for one in found:
        found += children.get(one, ())
    yield from found[1:]


def reaped(child: int) -> int | None:
    """Collect children that have ended. Returns the exit code of `child` if it is one of them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def end_all(child: int) -> NoReturn:
    """Kill all descendants of this process, and end it."""
    deadline = time.monotonic() + LONGEST_END
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while (left := list(descendants(os.getpid()))) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        reaped(child)
        time.sleep(PAUSE)
    os._exit(0)


PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that a command may send to its parent."""


def pass_signals_on() -> None:
    """Pass signals on to the process that asked for the command, unless they are ignored."""
    asker = os.getppid()

    def send(number: int, _: object) -> None:
        if os.getppid() == asker:
            os.kill(asker, number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, send)


def main(descriptor: int, passed: str, words: Sequence[str]) -> None:
    """Run a command, report its start and its end, and keep its processes until the asker ends."""
    pass_signals_on()
    with suppress(OSError, AttributeError):  # Orphans become children of this process.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    connection = Connection(descriptor)
    given = [] if passed == "-" else [int(passed)]
    try:
        command = subprocess.Popen(words, start_new_session=True, pass_fds=given)
    except OSError as error:
        connection.send_bytes(str(-(error.errno or errno.ENOEXEC)).encode())
        return
    for number in given:
        os.close(number)
    with suppress(OSError):  # If the other process has ended, `poll` says so.
        connection.send_bytes(str(command.pid).encode())
    running = True
    while not connection.poll(PAUSE):
        code = reaped(command.pid)
        if running and code is not None:
            running = False
            with suppress(OSError):
                connection.send_bytes(str(code + OFFSET).encode())
    end_all(command.pid)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
