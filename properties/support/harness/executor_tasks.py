"""What the executor's tests run in processes: tasks that end in every way there is.

Imports nothing that takes long, so that a process of it starts at once, unless SLOW_START is
set: then it takes as long as one that imports torch.
"""

import os
import re
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritybit.harness.campaigns.executor import Campaign, Ended, execute
from paritybit.harness.machine.workers import Workers

FOR_EVER, MOMENT = 3600.0, 1.0
LIMIT = 3.0
"""Seconds after which a task that hangs is ended; a process has certainly started by then."""

SLOW_START = "SLOW_START"
START_SECONDS = 2.5


@dataclass(frozen=True)
class Chore:
    """A task: what it does, and what it shares with others."""

    does: str
    shared: Hashable = None


@dataclass(frozen=True)
class Done:
    """What a task gives: the process that ran it, and whether that is of use any more."""

    does: str
    process: int
    spoiled: bool = False
    extra: Any = None


class NoDeviceError(BaseException):
    """Stands for a lost device that the task did not expect."""


def run(task: Chore) -> Done:
    """Do what a task says."""
    match task.does:
        case "hang":
            time.sleep(FOR_EVER)
        case "take a moment":
            time.sleep(MOMENT)
        case "die":
            os._exit(3)
        case "raise":
            raise LookupError("first line\nsecond line")
        case "lose the device":
            return Done(task.does, os.getpid(), spoiled=True)
        case "lose the device unexpectedly":
            raise NoDeviceError("no device")
        case "say the environment":
            return Done(task.does, os.getpid(), extra=dict(os.environ))
        case "give what cannot be sent":
            return Done(task.does, os.getpid(), extra=lambda: None)
    first = re.fullmatch("(lose the device|die) the first time (.+)", task.does)
    if first and not Path(first[2]).exists():
        Path(first[2]).touch()
        return run(Chore(first[1]))
    return Done(task.does, os.getpid())


def shared(task: Chore) -> Hashable:
    """Return what a task shares with others: if nothing, itself."""
    return task.shared or task


def seconds(task: Chore) -> float:
    """Return a limit that counts for a task that hangs."""
    return LIMIT if task.does == "hang" else FOR_EVER


CHORES = Campaign(run, shared, seconds)


def interrupted(*, slow_start: bool) -> None:
    """Run tasks in two processes until Ctrl-C, and say on stdout what ended until then."""
    if slow_start:
        os.environ[SLOW_START] = "1"
    ends: list[str] = []

    def on_end(ended: Ended[Chore, Done]) -> None:
        ends.append(ended.task.does)
        say("ended")

    campaign = Campaign(run, shared, lambda _: FOR_EVER)
    say("starting")
    try:
        execute(
            campaign, [Chore("go well"), Chore("hang", 1), Chore("hang", 2)], Workers(2), on_end
        )
    except KeyboardInterrupt:
        say("interrupted after", *ends)
        sys.exit(130)


def say(*words: str) -> None:
    """Write a line at once."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if os.environ.get(SLOW_START):
    time.sleep(START_SECONDS)
