"""Follows a command until it ends or has to stop: reads its journals and hears signals."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from paritybit.harness.machine.stopping import heard_by
from paritybit.launch.command import GRACE, LEFT_OVER, Running
from paritybit.launch.journals import Journals
from paritybit.launch.known import Known
from paritybit.launch.tally import Tally

PAUSE = 0.1
"""Seconds between two looks at the journals."""

AGAIN = 1.0
"""Seconds after a signal from which another one means that the command is to be killed.

A process may be sent one twice at once, as by a supervisor and by the terminal.
"""

Show = Callable[[Tally, Mapping[str, Any] | None], object]
"""Shows a tally, and the finding that is new in it, if there is one."""


class Stops:
    """Signals that ask for a stop. `received` is the first of them."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.at = 0.0
        self.hurried = False

    def hear(self, number: int, _: FrameType | None) -> None:
        """Take note of a signal."""
        if self.received is None:
            self.received, self.at = number, time.monotonic()
        elif time.monotonic() - self.at > AGAIN:
            self.hurried = True

    def heard(self) -> AbstractContextManager[None]:
        """Return what lets signals be heard here, and raise nothing, within it."""
        return heard_by(self.hear)


@dataclass
class Limits:
    """When a command is stopped that does not end by itself.

    `seconds` is the longest time it may run, and `after_finding` the time that is left to it after
    its first finding, in which later findings may show what that one did. None: no limit.
    `sought` is the key of the only finding that counts for this; None for any that is not `known`.
    """

    seconds: float | None = None
    after_finding: float | None = None
    sought: str | None = None
    known: Known = field(default_factory=Known)

    def counts(self, finding: Mapping[str, Any]) -> bool:
        """Whether a finding of a journal counts."""
        if self.sought is not None:
            return bool(finding.get("key") == self.sought)
        return not self.known.covers(finding)


class Following:
    """A command that runs, and what its journals say."""

    def __init__(
        self, running: Running, journals: Journals, stops: Stops, show: Show, limits: Limits
    ) -> None:
        self.running, self.journals, self.stops = running, journals, stops
        self.show, self.limits = show, limits
        self.tally = Tally()
        self.started = time.monotonic()
        self.found_at: float | None = None
        self.asked_at: float | None = None
        self.too_long = False
        """Whether the command was stopped because it ran for too long."""

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.started

    def follow(self) -> Tally:
        """Return what the journals say when the command, and all that it started, has ended."""
        while not self.running.wait(PAUSE):
            self.read()
            self.stop_if_due()
        self.running.clear()
        self.read()
        return self.tally

    def read(self) -> None:
        """Read the journals and show what is new."""
        for process, entry in self.journals.entries():
            finding = self.tally.take(process, entry)
            if finding is not None:
                if self.limits.counts(finding):
                    self.found_at = self.found_at or time.monotonic()
                self.show(self.tally, finding)
        self.show(self.tally, None)

    def stop_if_due(self) -> None:
        """Ask the command to stop if there is a reason to, and kill it if it does not stop."""
        now = time.monotonic()
        if self.asked_at is None:
            number = self.reason()
            if number is not None:
                self.asked_at = now
                self.running.ask_to_stop(number)
            return
        waited = now - self.asked_at
        if self.stops.hurried or waited > GRACE + LEFT_OVER:
            self.running.send(signal.SIGKILL)
        elif waited > GRACE:
            self.running.send(signal.SIGTERM)

    def reason(self) -> int | None:
        """Return the signal with which the command is to be stopped now, None to let it run."""
        if self.stops.received is not None:
            return signal.SIGINT if self.stops.received == signal.SIGINT else signal.SIGTERM
        limits, found = self.limits, self.found_at
        if limits.after_finding is not None and found is not None:
            if time.monotonic() - found >= limits.after_finding:
                return signal.SIGTERM
        elif limits.seconds is not None and self.seconds > limits.seconds:
            self.too_long = True
            return signal.SIGTERM
        return None
