"""Notices that a rank waits in a forward pass, such as for another rank that does not come."""

import sys
import time
import weakref
from threading import Thread
from typing import TYPE_CHECKING

from paritybit.watch.stacks import stack

if TYPE_CHECKING:
    from paritybit.watch.watcher import Watcher

LONGEST, PAUSE = 30.0, 1.0
"""Seconds in a forward after which its rank waits, and between two looks."""


class Waits(Thread):
    """Writes to the journal in which forward, and at which line, the rank of a watcher waits."""

    def __init__(self, watcher: "Watcher") -> None:
        super().__init__(daemon=True)
        self.watcher = weakref.ref(watcher)

    def run(self) -> None:
        """Look until the watcher is gone. The thread ends in a fork, too."""
        number, since = 0, time.monotonic()
        while (watcher := self.watcher()) is not None:
            if number != watcher.number or not watcher.watching or watcher.waits:
                number, since = watcher.number, time.monotonic()
            elif time.monotonic() - since > LONGEST:
                watcher.waits = True
                # A name for the frame would keep all that its functions hold.
                where = stack(watcher.package, sys._current_frames().get(watcher.thread))
                watcher.journal.write("waits", forward=number, line="".join(where.lines[:1]))
            del watcher
            time.sleep(PAUSE)
