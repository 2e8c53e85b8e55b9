"""A command in a session of its own: it is stopped as a whole, and nothing of it stays behind."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from paritybit.drive.warm import Fork, Warm, forks
from paritybit.harness.errors import MalformedError, quoted

GRACE = 20.0
"""Seconds that a command has to end after it was asked to, before it is killed."""

LEFT_OVER = 5.0
"""Seconds that processes have to end which a command left behind."""

PAUSE = 0.05
"""Seconds between two looks at whether processes have ended."""

NOT_FOUND, NOT_EXECUTABLE = "not found", "cannot be executed"


class Running:
    """A command that was started.

    Its processes form a session, so that a signal reaches all of them and no other process.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes] | None = None,
        folder: Path | None = None,
        warm: Warm | None = None,
    ) -> None:
        """Start it, in `folder` if one is given.

        Its stdin, stdout and stderr are this process's. With `output`, what it prints goes there.
        With `warm`, a command that serves an engine is a fork of a process that has imported it.

        Raises MalformedError for a program that does not exist or cannot be executed.
        """
        self.asked_to_stop = False
        self.process: subprocess.Popen[bytes] | Fork
        if warm is not None and forks(words):
            assert output is not None and folder is not None
            self.process = warm.start(words, environment, output, folder)
            return
        try:
            self.process = subprocess.Popen(
                list(words),
                env=dict(environment),
                cwd=folder,
                stdin=None if output is None else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise MalformedError(f"cannot run {quoted(words[0])}: {NOT_FOUND}") from error
        except (OSError, ValueError) as error:  # ValueError: a word holds a null byte.
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise MalformedError(f"cannot run {quoted(words[0])}: {why}") from error

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    def send(self, number: int) -> None:
        """Send a signal to all processes of the command."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def ask_to_stop(self, number: int) -> None:
        """Ask the command to stop.

        SIGINT reaches all of its processes, as Ctrl-C on a terminal does. Any other signal goes to
        the first one alone, as a supervisor sends it: a server first completes its requests, for
        which it needs the processes that it started.
        """
        self.asked_to_stop = True
        if number == signal.SIGINT:
            self.send(number)
        else:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Wait until the command has ended, or for so many seconds; return whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def clear(self) -> None:
        """Stop the processes that a command which ended left behind, and kill those that stay."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.send(number)
            for process in self._left():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
            deadline = time.monotonic() + LEFT_OVER
            while self._left() and time.monotonic() < deadline:
                time.sleep(PAUSE)

    def _left(self) -> list[int]:
        """Return the processes of the session that have not ended; none where there is no /proc."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, IndexError, ValueError):
                state, _, _, session, *_ = entry.read_text().rpartition(")")[2].split()
                if int(session) == self.process.pid and state != "Z":
                    found.append(int(entry.parent.name))
        return found
