"""The command `releases`: watches releases of an engine, and shows which have which finding.

Each release has its own process and folder. Releases with results in their folder are skipped, so
an interrupted run can continue.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from paritybit.harness.cli.exit_codes import CANNOT_RUN, INTERRUPTED, OK
from paritybit.harness.cli.watch.display import Display
from paritybit.harness.cli.watch.run import last_line
from paritybit.harness.records.codec import load
from paritybit.harness.records.files import write_whole
from paritybit.reports.releases import Release, causes_in, matrix

from paritybit import __version__
from paritybit.engines import fetch
from paritybit.engines.packages import PACKAGES
from paritybit.launch.command import Running
from paritybit.launch.follow import Stops
from paritybit.launch.schema import WatchRecord
from paritybit.launch.words import plural

PAUSE = 0.2

NEWEST = "newest"
"""Stands for the newest release."""

LOG = "release.log"
"""The file with the output of a release's run, in its folder."""

AT_ONCE = 2
"""The number of releases that are watched at a time."""


@dataclass
class Walk:
    """A run over releases."""

    package: str
    folder: Path
    seed: int
    seconds: int
    display: Display
    stops: Stops
    lock: threading.Lock = field(default_factory=threading.Lock)

    def watched(self, version: str) -> Release:
        """Return the result of a release. It is watched unless there is a complete result.

        Findings of an interrupted run are kept, and the next run watches the release again.
        """
        home = self.folder / version
        home.mkdir(parents=True, exist_ok=True)
        record = home / "latest" / "watch.json"
        found = load(record, WatchRecord) if record.exists() else None
        if found is None or not self.is_complete(found):
            before = None if found is None else record.resolve()
            if self.stops.received is None:
                self.run(home, version)
            if not record.exists() or record.resolve() == before:
                interrupted = self.stops.received is not None
                why = last_line(home / LOG).removeprefix("paritybit: ") if not interrupted else ""
                return Release(version, None, why or "the run was interrupted before")
            found = load(record, WatchRecord)
        if found.verdict == "undecided" and not found.counts.get("forwards"):
            return Release(version, None, why_not(record.parent))
        with self.lock:
            self.display.put(f"{version}: {found.verdict}: {found.message}")
        return Release(version, found)

    def is_complete(self, found: WatchRecord) -> bool:
        """Return whether a record is of a whole run with the same seed and version."""
        same = (found.seed, found.environment.paritybit) == (self.seed, __version__)
        return same and found.interrupted is None

    def run(self, home: Path, version: str) -> None:
        """Watch a release in its own process, with its output in a file."""
        words = ("watch", "--engine", f"{self.package}=={version}", "--keep-going")
        numbers = ("--seconds", str(self.seconds), "--seed", str(self.seed))
        with (home / LOG).open("ab") as output:
            command = [sys.executable, "-m", "paritybit", *words, *numbers, "--out", str(home)]
            running = Running(command, os.environ, output)
            while not running.wait(PAUSE):
                if self.stops.received is not None and not running.asked_to_stop:
                    running.ask_to_stop(signal.SIGINT)
            running.clear()


def why_not(run: Path) -> str:
    """Return why no engine of a run served requests: the last line of the first output."""
    logs = sorted(run.glob("legs/*/engine.log"), key=lambda log: log.stat().st_mtime)
    return last_line(logs[0]) if logs else "no engine was started"


def run_releases(engine: str, names: Sequence[str], seconds: int, seed: int, folder: Path) -> int:
    """Watch releases of an engine, write the matrix of findings, and return the exit code."""
    versions = versions_of(engine, names)
    display, stops = Display(), Stops()
    walk = Walk(engine, folder.resolve(), seed, seconds, display, stops)
    display.put(f"watch {plural(len(versions), 'release')} of {engine}")
    with stops.heard(), ThreadPoolExecutor(AT_ONCE) as pool:
        releases = list(pool.map(walk.watched, versions))
    write_whole(folder / MATRIX, matrix(releases))
    display.put(f"matrix: {folder / MATRIX}")
    if stops.received is not None:
        return INTERRUPTED
    tried = [release for release in releases if release.tried]
    display.put(
        f"{len(tried)} of {plural(len(releases), 'release')} tried, "
        f"{plural(len(causes_in(releases)), 'cause')} of findings",
        style="bold",
    )
    return OK if tried else CANNOT_RUN


def versions_of(engine: str, names: Sequence[str]) -> Sequence[str]:
    """Return the releases with these names, or all with pinned hashes if there is none.

    Raises MalformedError for a malformed name.
    """
    package = PACKAGES[engine]
    if not names:
        pinned = re.findall(rf"^{package.name}==(\S+)", fetch.RELEASES.read_text(), re.MULTILINE)
        known = [one for one in pinned if fetch.in_order(one) >= fetch.in_order(package.oldest)]
        return sorted(known, key=fetch.in_order)
    for name in names:
        if name != NEWEST:
            fetch.require_release(name, package)
    versions = [fetch.newest(package) if one == NEWEST else one for one in names]
    return list(dict.fromkeys(versions))


MATRIX = "releases.md"
