"""The boundary between the engine and the sanitizer: handles errors and reports."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import torch

from paritybit.watch import memory
from paritybit.watch.attach import of_signal, where
from paritybit.watch.checks import selected
from paritybit.watch.journal import Journal
from paritybit.watch.observations import Check
from paritybit.watch.settings import TRIED, Settings

P = ParamSpec("P")

LONGEST = 500
"""Number of characters of an error message that are kept."""


def guarded(method: Callable[P, None]) -> Callable[P, None]:
    """Catch errors of the sanitizer: the journal has them, and the watcher forgets all it knows."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        watcher: Any = args[0]
        with watcher.lock, memory.Ours():
            if watcher.busy:
                return
            try:
                with torch.no_grad():
                    method(*args, **kwargs)
            except BaseException as error:
                watcher.lose()
                if of_signal(error):
                    raise
                watcher.undecided(f"an error in the sanitizer: {where()}")

    return call


class Boundary:
    """Runs the selected checks and writes their findings.

    Several threads may call it. Calls are ignored while the sanitizer itself runs the engine.
    """

    def __init__(self, journal: Journal, settings: Settings) -> None:
        self.journal, self.settings = journal, settings
        self.checks = selected(settings.checks)
        self.of_stage: dict[str, list[Check]] = {}
        for check in self.checks:
            self.of_stage.setdefault(check.stage, []).append(check)
            self.journal.counts.setdefault(f"{TRIED}{check.name}", 0)
        self.lock = threading.RLock()
        self.busy = False

    def lose(self) -> None:
        """Forget everything that is known, and stop watching the current forward."""
        raise NotImplementedError

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Ignore reports of the engine while the sanitizer itself runs it."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def judge(self, stage: str, observation: object) -> None:
        """Run the selected checks of a stage and write their findings."""
        for check in self.of_stage.get(stage, ()):
            self.journal.count(**{f"{TRIED}{check.name}": check.compares(observation)})
            for finding in check.judge(observation):
                self.journal.finding(finding)

    def compared(self, stage: str, number: int) -> None:
        """Count comparisons of a stage whose observations exist only where something is wrong."""
        for check in self.of_stage.get(stage, ()):
            self.journal.count(**{f"{TRIED}{check.name}": number})

    def undecided(self, what: str) -> None:
        """Report that something could not be judged."""
        self.journal.undecided(what)
