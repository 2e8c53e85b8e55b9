"""Runs a command under a guard, so that all of its processes can be stopped together."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from paritybit.drive.warm import Fork, Warm, forks
from paritybit.harness.errors import MalformedError, quote
from paritybit.harness.machine.guard import Guarded

GRACE = 20.0
"""Seconds between the first signal to stop a command and the next one."""

LEFT_OVER = 5.0
"""Seconds that processes which a command left behind have to end."""

PAUSE = 0.05
"""Seconds between two checks whether processes have ended."""


class Running:
    """A command that was started. Its processes end when this process ends, in whatever way."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes] | None = None,
        folder: Path | None = None,
        warm: Warm | None = None,
    ) -> None:
        """Start the command, in a fork of `warm` if it serves an engine.

        Raises MalformedError for a program that cannot be executed.
        """
        self.asked_to_stop = False
        self.process: Guarded | Fork
        if warm is not None and forks(words):
            assert output is not None and folder is not None
            self.process = warm.start(words, environment, output, folder)
            return
        try:
            self.process = Guarded(words, environment, output, folder)
        except FileNotFoundError as error:
            raise MalformedError(f"cannot run {quote(words[0])}: not found") from error
        except (OSError, ValueError) as error:  # ValueError: a word holds a null byte.
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise MalformedError(f"cannot run {quote(words[0])}: {why}") from error

    def send(self, number: int) -> None:
        """Send a signal to all processes of the command's session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def ask_to_stop(self, number: int) -> None:
        """Ask the command to stop: SIGINT goes to its session, as by Ctrl-C.

        Another signal goes to the first process, as a server completes its requests with others.
        """
        self.asked_to_stop = True
        if number == signal.SIGINT:
            self.send(number)
        else:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Returns whether the command has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def clear(self) -> None:
        """Stop the processes that an ended command left behind, and kill what remains."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.send(number)
            for process in self.process.left():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
            deadline = time.monotonic() + LEFT_OVER
            while self.process.left() and time.monotonic() < deadline:
                time.sleep(PAUSE)
        if isinstance(self.process, Guarded):
            self.process.end()
