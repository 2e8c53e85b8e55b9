"""The processes of the ranks of a whole sglang: the first one forks the others.

The first rank plays the requests. The engine itself passes them on to ranks that serve the same
ones. With data-parallel attention, the first rank of each further group gets its requests, and
returns its outputs, over a pipe.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

from paritybit.watch import journal

LONGEST_END = 30.0
"""Seconds that the other ranks have to end after the first one."""

GRACE = 3.0
"""Seconds that another rank has to report an error, after which the first one also failed."""

PLAYED = "paritybit: all is played"
"""The request whose abort tells all ranks to end. No request has its name."""

ROUNDS = 2
"""Rounds of the loop of a stage until the next one has what it was sent. It gets no more."""


class Silent:
    """A receiver of the outputs of ranks that report none."""

    @staticmethod
    def hear(*_: object) -> None:
        """Ignore an output."""


@dataclass
class Ranks:
    """The place of this process among the ranks of its engine: stage `pp`, and `tp` in it.

    `group` is the data-parallel group, and `leads` whether this is its first rank.
    `pipes` connects the first rank to all others, and these to it.
    """

    stages: int
    groups: int
    pp: int = 0
    tp: int = 0
    group: int = 0
    leads: bool = True
    pipes: dict[tuple[int, int], Connection] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)
    rounds: int | None = None
    """How many rounds are left, once all is played."""

    @classmethod
    def forked(cls, tp: int, pp: int, dp: int) -> "Ranks":
        """Fork the processes of the other ranks. Returns this one's place, in each of them."""
        mine, size = cls(pp, dp), tp * dp
        for stage in range(pp):
            for rank in range(size):
                if (stage, rank) == (0, 0):
                    continue
                here, there = Pipe()
                child = os.fork()
                if child == 0:
                    here.close()
                    for one in mine.pipes.values():
                        one.close()
                    journal.of_process()  # One of its own.
                    group, place = divmod(rank, tp)
                    return cls(pp, dp, stage, rank, group, place == 0, {(0, 0): there})
                there.close()
                mine.pipes[stage, rank] = here
                mine.processes.append(child)
        return mine

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return bool(self.pipes)

    @property
    def plays(self) -> bool:
        """Whether this process plays the requests."""
        return (self.pp, self.tp) == (0, 0)

    def leaders(self) -> list[Connection]:
        """Return the connections to the first ranks of the other groups."""
        size = 1 + max((rank for _, rank in self.pipes), default=0)
        return [self.pipes[0, number * size // self.groups] for number in range(1, self.groups)]

    def exchange(self) -> list[Any]:
        """Return the requests that arrive now at the first rank of a further group."""
        heard, self.heard = self.heard, []
        self.pipes[0, 0].send(heard)
        given: list[Any] = self.pipes[0, 0].recv()
        return given

    def ends(self, given: list[Any]) -> bool:
        """Return whether this rank has to end now. It passes on `given` before."""
        if any(getattr(one, "rid", None) == PLAYED for one in given):
            self.rounds = 0 if self.pp == self.stages - 1 else ROUNDS
        elif self.rounds is not None:
            self.rounds -= 1
        return self.rounds is not None and self.rounds <= 0

    def wait(self) -> int:
        """Wait for the other ranks. Returns the exit code of the first one that failed, or 0.

        Other ranks than the first wait until it has ended, as it may still send them something.
        """
        if not self.plays:
            if (lines := journal.of_process()) is not None:
                lines.end()
            with suppress(EOFError, OSError):
                while self.pipes[0, 0].poll(LONGEST_END):
                    self.pipes[0, 0].recv()
            return 0
        for one in self.pipes.values():
            one.close()
        deadline, codes = time.monotonic() + LONGEST_END, list[int]()
        for child in self.processes:
            while (code := ended(child)) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if code is None:
                os.kill(child, signal.SIGKILL)
                code = ended(child, flags=0)
            codes.append(code or 0)
        return next(filter(None, codes), 0)

    def leave(self) -> None:
        """End the other ranks after an error of the first one."""
        for child in self.processes:
            deadline = time.monotonic() + GRACE
            while (code := ended(child)) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if code is None:
                os.kill(child, signal.SIGKILL)
                ended(child, flags=0)


def ended(child: int, flags: int = os.WNOHANG) -> int | None:
    """Return the exit code of a child, or None while it runs."""
    found, status = os.waitpid(child, flags)
    return os.waitstatus_to_exitcode(status) if found else None


def answering(ranks: Ranks, hear: Callable[..., None]) -> Callable[..., None]:
    """Return what gets the outputs of this rank."""
    if ranks.plays:
        return hear
    if ranks.pp == 0 and ranks.leads:
        return lambda output, *_: ranks.heard.append(output)
    return Silent.hear
