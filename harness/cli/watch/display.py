"""The output of `watch` during the run: progress, and each new finding."""

import threading
import time
from collections import Counter

from paritybit.harness.errors import printable
from rich.console import Console

from paritybit.launch.schema import RecordedFinding
from paritybit.launch.tally import Tally
from paritybit.launch.verdict import scope_of
from paritybit.launch.words import named, plural

FIRST_LINE, RAREST_LINE = 5.0, 300.0
"""Seconds before the first line of progress, and at most between two. They double each time."""

MOST = 12
"""The number of findings that are printed when they occur."""


class Display:
    """Shows a run on a console, with lines of progress at increasing intervals."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, soft_wrap=True)
        self.tallies: dict[str, Tally] = {}
        self.lock = threading.Lock()
        self.found: set[tuple[str, str]] = set()
        self.started = time.monotonic()
        self.pause = FIRST_LINE
        self.next = self.started + self.pause

    def show(self, config: str, tally: Tally, finding: RecordedFinding | None) -> None:
        """Show a tally and its new finding, if any. Several threads may call it.

        Of the findings of a check with one cause, only the first is printed.
        """
        with self.lock:
            self.tallies[config] = tally
            if finding and (found := (finding.check, finding.cause_name)) not in self.found:
                self.found.add(found)
                if len(self.found) <= MOST:
                    self.put(named(finding), style="bold red")
                elif len(self.found) == MOST + 1:
                    self.put("there are further findings; the page at the end has all")
            now = time.monotonic()
            if now >= self.next:
                self.put(self.progress(config, now))
                self.pause = min(2 * self.pause, RAREST_LINE)
                self.next = now + self.pause

    def progress(self, config: str, now: float) -> str:
        """Return the line of progress: the totals of all configurations, and the name of one."""
        tallies, counts = self.tallies.values(), Counter[str]()
        for tally in tallies:
            counts.update(tally.counts())
        found = plural(sum(one.number(key) for one in tallies for key in one.findings), "finding")
        loaded = any(tally.processes for tally in tallies)
        seen = scope_of(counts) if loaded else "no engine loaded yet"
        name = f"{config}: " if config else ""
        return f"{now - self.started:.0f} s: {name}{seen}: {found}"

    def put(self, line: str, style: str | None = None) -> None:
        """Print a line with the prefix of paritybit, because the command also prints."""
        self.put_plain(f"paritybit: {printable(line)}", style)

    def put_plain(self, line: str, style: str | None = None) -> None:
        """Print a line without the prefix, for example for a CI runner."""
        self.console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
