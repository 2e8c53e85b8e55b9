"""Threads that take turns, so that a seed orders what they do.

A thread runs only while its turn lasts, which ends where it waits for a queue.
"""

import os
import queue
import threading
from types import ModuleType
from typing import Any, ClassVar


class Turns:
    """Stands in for `threading.Thread`. Such a thread runs only while its turn lasts."""

    all: ClassVar[list["Turns"]] = []
    held = threading.local()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.given = arguments, named
        self.ended = False

    def start(self) -> None:
        """Start the thread. Its first turn comes later."""
        self.all.append(self)
        self.begin()

    def begin(self) -> None:
        """Start a thread. It waits for its turn."""
        self.mine, self.others = threading.Semaphore(0), threading.Semaphore(0)
        thread = threading.Thread(*self.given[0], **self.given[1])
        body = thread.run

        def run() -> None:
            self.held.turns = self
            self.mine.acquire()
            try:
                body()
            finally:
                self.ended = True
                self.all.remove(self)
                self.others.release()

        thread.run = run  # type: ignore[method-assign]
        thread.start()

    def turn(self) -> None:
        """Let the thread run until it next waits at a queue."""
        if not self.ended:
            self.mine.release()
            self.others.acquire()

    def pause(self) -> None:
        """End the turn of this thread, which is the current one."""
        self.others.release()
        self.mine.acquire()

    def join(self, timeout: float | None = None) -> None:
        """Give the thread turns until it ends. Raises RuntimeError if it does not."""
        for _ in range(MOST_TURNS):
            self.turn()
        if not self.ended:
            raise RuntimeError("a thread of the storage does not end")

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self in self.all


def begin_again() -> None:
    """Begin the threads of the parent in a fork, which has none of them."""
    for one in Turns.all:
        one.begin()


os.register_at_fork(after_in_child=begin_again)

MOST_TURNS = 10_000
"""The most turns of a thread that is to end."""


class TurnQueue(queue.Queue[Any]):
    """A queue at which threads in turns wait for their next turn."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item. In a thread of turns, wait for the turn first."""
        if (turns := getattr(Turns.held, "turns", None)) is None:
            return super().get(block, timeout)
        turns.pause()
        while block and timeout is None and self.empty():
            turns.pause()
        return super().get(block=False)


class Altered(ModuleType):
    """A module with some other attributes."""

    def __init__(self, module: ModuleType, **others: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(others, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)
