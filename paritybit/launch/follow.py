"""Follows a command until it ends: reads its journals, and stops it if needed."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from paritybit.launch.command import GRACE, LEFT_OVER, Running
from paritybit.launch.journals import Journals
from paritybit.launch.known import Known
from paritybit.launch.schema import RecordedFinding
from paritybit.launch.tally import Tally

PAUSE = 0.1
"""Seconds between two reads of the journals."""

AGAIN = 1.0
"""Seconds after a first signal, which may come twice at once. A later signal kills the command."""

Show = Callable[[Tally, RecordedFinding | None], object]
"""Shows a tally, and its new finding, if there is one."""


class Stops:
    """Records signals that ask for a stop. `received` is the first one."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.at = 0.0
        self.hurried = False

    def hear(self, number: int, _: FrameType | None) -> None:
        """Record a signal."""
        if self.received is None:
            self.received, self.at = number, time.monotonic()
        elif time.monotonic() - self.at > AGAIN:
            self.hurried = True


@dataclass
class StopLimits:
    """When to stop a command that does not end by itself.

    - `seconds`, `after_finding`: how long it may run, also after its first finding, or None.
    - `found`: the times of findings that count, in all commands that stop together.
    - `sought`: the key of the only finding that counts, or None for all that are not `known`.
    """

    seconds: float | None = None
    after_finding: float | None = None
    found: list[float] = field(default_factory=list)
    sought: str | None = None
    known: Known = field(default_factory=Known)

    def counts(self, finding: RecordedFinding) -> bool:
        """Return whether a finding counts."""
        if self.sought is not None:
            return finding.key == self.sought
        return self.known.where(finding) is None


EARLY = 2.0
"""Seconds between the end of a rank that dies, and that of the last of the others."""

AT_ONCE = 2 * PAUSE
"""The same, if the command failed: the death of a rank soon ends the others."""


@dataclass
class Lives:
    """When the processes of ranks were last seen alive, in seconds."""

    seen: dict[str, float] = field(default_factory=dict)

    def look(self, tally: Tally, *, asked: bool) -> None:
        """Note which ranks are alive, until the command was asked to stop."""
        now = time.monotonic()
        if not asked:
            self.seen |= {one: now for one in tally.agreement.ranks if alive(one)}

    def died(self, tally: Tally, early: float = EARLY) -> tuple[str, ...]:
        """Return the ranks that ended some time before the others, without closing a journal.

        A command may start an engine after another one, whose ranks it killed.
        """
        last, engines = dict[int, float](), tally.agreement.engines
        for one, seen in self.seen.items():
            last[engines[one]] = max(seen, last.get(engines[one], 0.0))
        gone = [one for one, seen in self.seen.items() if last[engines[one]] - seen > early]
        processes = (tally.processes[one].started for one in gone)
        return tuple(sorted({one.rank for one in processes if one is not None and not one.ended}))


def alive(process: str) -> bool:
    """Return whether a process runs. A process that has ended may wait for its parent."""
    with suppress(OSError, ValueError):
        if Path("/proc/self/stat").exists():
            text = Path(f"/proc/{int(process)}/stat").read_text(encoding="utf-8", errors="replace")
            return text.rpartition(")")[2].split()[0] not in "ZX"
        os.kill(int(process), 0)
        return True
    return False


class Follower:
    """Follows a running command and its journals."""

    def __init__(
        self, running: Running, journals: Journals, stops: Stops, show: Show, limits: StopLimits
    ) -> None:
        self.running, self.journals, self.stops = running, journals, stops
        self.show, self.limits = show, limits
        self.tally, self.lives = Tally(), Lives()
        self.started = time.monotonic()
        self.asked_at: float | None = None
        self.starting: float | None = None
        """The seconds until the first process had loaded its engine."""
        self.too_long = False
        """Whether the command was stopped because it ran for too long."""

    @property
    def seconds(self) -> float:
        """The time since the command started."""
        return time.monotonic() - self.started

    def follow(self) -> Tally:
        """Return the tally when all processes of the command have ended."""
        while not self.running.wait(PAUSE):
            self.read()
            self.lives.look(self.tally, asked=self.asked_at is not None)
            self.stop_if_due()
        self.running.clear()
        self.read()
        self.found(self.tally.finish())
        failed = self.asked_at is None and self.running.process.returncode != 0
        self.tally.died = self.lives.died(self.tally, AT_ONCE if failed else EARLY)
        self.tally.undecided |= dict.fromkeys(self.journals.incomplete())
        return self.tally

    def read(self) -> None:
        """Read the journals and show new entries."""
        for process, entry in self.journals.entries():
            if self.starting is None and entry["kind"] == "start":
                self.starting = self.seconds
            self.found(self.tally.take(process, entry))
        self.show(self.tally, None)

    def found(self, finding: RecordedFinding | None) -> None:
        """Show a new finding, if there is one."""
        if finding is not None:
            if self.limits.counts(finding):
                self.limits.found.append(time.monotonic())
            self.show(self.tally, finding)

    def stop_if_due(self) -> None:
        """Ask the command to stop if there is a reason, and kill it if it does not."""
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
        """Return the signal that is to stop the command now, or None to let it run."""
        if self.stops.received is not None:
            return signal.SIGINT if self.stops.received == signal.SIGINT else signal.SIGTERM
        limits = self.limits
        if limits.after_finding is not None and limits.found:
            if time.monotonic() - limits.found[0] >= limits.after_finding:
                return signal.SIGTERM
        elif limits.seconds is not None and self.seconds > limits.seconds:
            self.too_long = True
            return signal.SIGTERM
        return None
