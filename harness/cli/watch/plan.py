"""The plan of a run: which configurations an engine is served with, in which order, and how long.

A run has a budget of wall time, which includes the starts of the engine. The configurations of the
covering array are served, `workers` at a time, until it is spent. Each ends when its share of the
time is over and its floor is reached: LEAST forwards and AT_LEAST waves. Configurations that are
named on the command line have no floor. The time of a configuration begins when its engine has
started: the first start imports the engine, and may take longer than a share.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paritybit.harness.errors import MalformedError, require_known
from paritybit.harness.machine.workers import cores

from paritybit.drive.configs import AND, Config, Table
from paritybit.drive.job import Job
from paritybit.drive.script import Setting

LEAST = 100
"""The floor of forwards of a configuration."""

MOST = 1 / 10
"""The part of the budget after which a configuration ends below its floor."""

LAST = 12.0
"""No further configuration starts with fewer seconds left."""

STARTS = 1.5
"""Nor does one start with less time left than the latest start took, times this."""

AT_ONCE = 2
"""Configurations that are served at a time on a CPU. Each keeps one core busy."""

OVER = "the time was over"


@dataclass(frozen=True)
class ConfigTurn:
    """A configuration that is to be served for some seconds after its start, until a time.

    With `after`, it ends as soon as its floor is reached after so many seconds.
    """

    config: Config
    until: float
    seconds: float
    after: float | None = None

    def job(self, settings: dict[str, Setting]) -> Job:
        """Return the job of an engine with some settings."""
        if self.after is None:
            return Job(settings, until=self.until, most=self.seconds)
        return Job(settings, until=self.until, most=self.seconds, least=LEAST, after=self.after)


@dataclass
class Plan:
    """The configurations of a run, in order, and its budget of `seconds` from now on.

    With `named`, they share the budget. `left` has those that have not started. `start` is how long
    the latest start of an engine took.
    """

    configs: Sequence[Config]
    seconds: float
    workers: int = 1
    named: bool = False
    clock: Callable[[], float] = time.time
    start: float = 0.0
    left: list[Config] = field(init=False)
    ends: float = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.left, self.ends = list(self.configs), self.clock() + self.seconds

    def next(self) -> ConfigTurn | None:
        """Return what to serve next, or None if nothing is left or too little time is."""
        with self.lock:
            now = self.clock()
            started = len(self.configs) - len(self.left)
            last = max(LAST, STARTS * self.start)
            if not self.left or (started >= self.workers and self.ends - now < last):
                return None
            share = min(1.0, self.workers / len(self.left)) * max(0.0, self.ends - now)
            if self.named:
                return ConfigTurn(self.left.pop(0), self.ends, share)
            most = max(share, MOST * self.seconds)
            return ConfigTurn(self.left.pop(0), self.ends, most, share)


def workers_of(device: str, ranks: int = 1) -> int:
    """Return how many configurations, with so many ranks each, are served at a time on a device."""
    return max(1, min(AT_ONCE, cores()) // ranks) if device == "cpu" else 1


def configs_of(table: Table, seed: int, names: Sequence[str] = ()) -> tuple[Config, ...]:
    """Return the configurations with these names, or those of the covering array without names.

    A name has values with AND between them. Raises UnknownNameError for an unknown value, and
    MalformedError for values that cannot be combined.
    """
    if not names:
        return tuple(table.array.rows(seed))
    found = []
    for name in names:
        values = [value.strip() for value in name.split(AND.strip())]
        for value in values:
            require_known("setting", value, table.settings, "paritybit list settings")
        try:
            found.append(table.config(values))
        except ValueError as error:
            raise MalformedError(str(error)) from error
    return tuple({one.name: one for one in found}.values())
