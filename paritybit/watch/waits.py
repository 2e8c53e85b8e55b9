"""Notices that a rank waits in a forward pass, such as for another rank that does not come."""

import sys
import time
from threading import Event, Thread, get_ident

from paritybit.watch.journal import Journal
from paritybit.watch.stacks import stack

LONGEST, PAUSE = 30.0, 1.0
"""Seconds in a forward after which its rank waits, and between two looks."""


class Waits(Thread):
    """Writes to the journal in which forward, and at which line of a package, a rank waits.

    It holds nothing of the watcher, which could otherwise end in this thread. Set `over` to end it.
    It ends in a fork, too.
    """

    def __init__(self, journal: Journal, package: str) -> None:
        super().__init__(daemon=True)
        self.journal, self.package = journal, package
        self.over = Event()
        self.now: tuple[int, int] | None = None
        """The number and the thread of the current forward."""
        self.noticed = False
        """Whether the journal says that the rank waits."""

    def begin(self, forward: int) -> None:
        """Record that a forward begins in this thread."""
        self.now = forward, get_ident()

    def go_on(self) -> None:
        """Record that no forward runs, and tell the journal if it says that one waits."""
        with self.journal.lock:
            self.now = None
            if self.noticed:
                self.noticed = False
                self.journal.write("waits")

    def run(self) -> None:
        """Look until `over` is set."""
        seen, since = self.now, time.monotonic()
        while not self.over.wait(PAUSE):
            with self.journal.lock:  # A forward that ends meanwhile goes on after this line.
                now = self.now
                if now is None or now != seen or self.noticed:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > LONGEST:
                    self.noticed = True
                    forward, thread = now
                    # A name for the frame would keep all that its functions hold.
                    where = stack(self.package, sys._current_frames().get(thread))
                    self.journal.write("waits", forward=forward, line="".join(where.lines[:1]))
