"""The journal of one process: a file of JSON lines, `process-PID.jsonl`. It survives a kill.

| kind | fields |
|---|---|
| `start` | engine, release, pid, torch, device, python, rank, ranks: the number of ranks, by axis |
| `counts` | counts: name to number; findings: key to number; both are totals so far |
| `finding` | the fields of `Finding`; excerpt: source around its line |
| `undecided` | what: something that could not be judged |
| `scope` | settings: name to value |
| `stand_in` | what was replaced in the engine, why |
| `script` | settings with which paritybit serves the engine |
| `wave` | wave: the requests that paritybit serves next |
| `waits` | forward, line: where a rank waits; none of them if it has gone on |
| `leave` | poll: the poll of this wave at which all requests are aborted, as the run ends |
| `digests` | given: a list per forward, as `Digests.end` makes it |
| `kernels` | ran: whether each function for Triton ran, by module and name |
| `end` | |

Each line also has `time`, in seconds since the epoch.
"""

import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import FileIO
from multiprocessing import util
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from paritybit.watch.settings import Settings, active
from paritybit.watch.stacks import excerpt

KINDS = (
    *("start", "counts", "finding", "undecided", "scope", "stand_in", "script", "wave"),
    *("leave", "kernels", "waits", "digests", "end"),
)

MOST_ALIKE = 20
"""Number of findings of one key that are written in full. Further ones are only counted."""

PAUSE, SHARE = 0.5, 1 / 1000
"""The least seconds between two `counts` lines, also as a share of the time of the process.

A day of counts takes about 10 MB so, and not 240.
"""

MOST_DIGESTS = 64
"""The most digests that wait for the next counts."""

MOST_WAITING = 10_000
"""The most lines that wait until they can be written, apart from findings."""

WRITABLE = stat.S_IWUSR
"""The permission that a journal has if no line of it is missing."""


@dataclass(frozen=True)
class Finding:
    """One violation of an invariant.

    - `key`: equal for findings with the same check, group and cause.
    - `slots`: the first few of the `count` slots.
    - `writer`, `reader`: the request, position and forward that wrote the slot last, and that reads
      it, as far as they are known.
    - `freed`: the forward before which the slot was freed, and the line of the engine.
    - `origin`: how the reader got the slot.
    - `cause`: has `what`. If a static input explains the finding, it also has `input` and `source`,
      and `shown` if an experiment showed it. None means that the cause is unknown.
    """

    check: str
    text: str
    key: str
    forward: int
    forward_kind: str = ""
    group: str | None = None
    replay: str | None = None
    layer: str | None = None
    slots: tuple[int, ...] = ()
    count: int = 1
    writer: Mapping[str, Any] | None = None
    reader: Mapping[str, Any] | None = None
    freed: Mapping[str, Any] | None = None
    cause: Mapping[str, Any] | None = None
    origin: str | None = None


@dataclass
class Journal:
    """Writes the journal of one process. Does not buffer, and syncs findings to disk."""

    path: Path
    counts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    pid: int = field(default_factory=os.getpid)
    file: FileIO | None = None
    begun: float = field(default_factory=time.monotonic)
    counted: float = 0.0
    lost: bool = False
    """Whether lines wait that could not be written. stderr says so, and the engine continues."""
    waiting: list[bytes] = field(default_factory=list)
    """Lines that are not written yet. If the last attempt failed, the mode of the file says so."""
    digests: list[tuple[object, ...]] = field(default_factory=list)
    """Digests of forwards that are not written yet."""
    passes: dict[str, int] = field(default_factory=dict)
    """The number of forwards of each model, with the skipped ones. It outlives a watcher."""
    counted_all: bool = True
    """Whether all of these were counted. If not, digests would not match those of other ranks."""
    watchers: WeakKeyDictionary[Any, None] = field(default_factory=WeakKeyDictionary)
    """The watchers that write to this journal. They live as long as their connectors keep them."""
    lock: Any = field(default_factory=RLock)
    """A thread holds it while it writes."""

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line of one of KINDS, or try again with the next line.

        Values that JSON does not have become text.
        """
        assert kind in KINDS, kind
        line = {"kind": kind, "time": round(time.time(), 3), **fields}
        if len(self.waiting) < MOST_WAITING or kind == "finding":
            self.waiting.append(f"{json.dumps(line, default=str)}\n".encode())
        self._append(durable=kind == "finding")

    def _append(self, *, durable: bool = False) -> None:
        """Write the waiting lines. With `durable`, also sync the file to disk."""
        with self.lock:
            self._append_all(durable=durable)

    def _append_all(self, *, durable: bool) -> None:
        try:
            if self.file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.file = self.path.open("ab", buffering=0)
            while self.waiting:
                written = self.file.write(self.waiting[0])
                self.waiting[0] = self.waiting[0][written:]
                if not self.waiting[0]:
                    del self.waiting[0]
        except OSError as error:
            if not self.lost:
                sys.stderr.write(f"paritybit: the journal cannot be written: {error.strerror}\n")
            self.lost = True
            self._mark(complete=False)
            return
        if self.lost:
            self.lost = False
            self._mark(complete=True)
        if durable:
            with suppress(OSError):
                os.fsync(self.file.fileno())

    def _mark(self, *, complete: bool) -> None:
        """Mark the file as complete, or as one that lacks lines. This works on a full disk."""
        with suppress(OSError):
            mode = self.path.stat().st_mode
            self.path.chmod(mode | WRITABLE if complete else mode & ~WRITABLE)

    def finding(self, finding: Finding) -> None:
        """Write a finding. After MOST_ALIKE findings of its key, only count it."""
        self.findings[finding.key] = number = self.findings.get(finding.key, 0) + 1
        if number <= MOST_ALIKE:
            self.write("finding", **asdict(finding), excerpt=excerpt(finding.cause, finding.freed))

    def count(self, **more: int) -> None:
        """Add to the counts. Writes them if a name is new, or some time after the last time."""
        new = not more.keys() <= self.counts.keys()
        for name, number in more.items():
            self.counts[name] = self.counts.get(name, 0) + number
        now = time.monotonic()
        if new or now - self.counted > max(PAUSE, SHARE * (now - self.begun)):
            self.write_counts()

    def write_counts(self) -> None:
        """Write the counts, and the digests that wait."""
        self.counted = time.monotonic()
        self.write("counts", counts=self.counts, findings=self.findings)
        self.write_digests()

    def digest(self, *given: object) -> None:
        """Write the digest of a forward with the next counts, or with MOST_DIGESTS of them."""
        self.digests += [given] if self.counted_all else []
        if len(self.digests) >= MOST_DIGESTS:
            self.write_digests()

    def write_digests(self) -> None:
        """Write the digests that wait."""
        if self.digests:
            given, self.digests = self.digests, []
            self.write("digests", given=given)

    def once(self, kind: str, **fields: Any) -> None:
        """Write a line, unless the same line was written before."""
        text = json.dumps([kind, fields], default=str, sort_keys=True)
        if text not in self.said and len(self.said) < 10_000:
            self.said.add(text)
            self.write(kind, **fields)

    def undecided(self, what: str) -> None:
        """Report, once, that something could not be judged, so that the run has no verdict."""
        self.once("undecided", what=what)

    def lose(self) -> None:
        """Make the watchers forget what they know, because a connector did not report all of it."""
        self.counted_all = False
        for watcher in list(self.watchers):
            watcher.lose()
            watcher.missed()

    def scope(self, **settings: object) -> None:
        """Report settings that are in use, such as a backend or a page size."""
        self.once("scope", settings=settings)

    def stand_in(self, what: str, why: str) -> None:
        """Report that a part of the engine was replaced, and why."""
        self.once("stand_in", what=what, why=why)

    def begin_anew(self) -> None:
        """Start an empty journal for this process, which was forked from another one."""
        self.pid, self.file, self.lock = os.getpid(), None, RLock()
        self.path = self.path.with_name(f"process-{self.pid}.jsonl")
        self.counts, self.findings, self.said = {}, {}, set()
        self.waiting, self.digests, self.lost = [], [], False
        util.Finalize(None, self.end, exitpriority=0)

    def go_on_in(self, folder: Path) -> None:
        """Continue in a file of this process in a folder, with the lines written so far."""
        before, self.pid, self.file, self.lock = self.path, os.getpid(), None, RLock()
        self.path = folder / f"process-{self.pid}.jsonl"
        if before.exists():
            self.waiting.insert(0, before.read_bytes())
            self._append()

    def settle(self) -> None:
        """Judge everything that happened so far."""
        for watcher in list(self.watchers):
            watcher.settled()
        self.write_digests()
        if self.waiting:
            self._append()

    def end(self) -> None:
        """Write the counts and the last line, and close the file. Does nothing in a fork."""
        if os.getpid() == self.pid and (self.file is not None or self.waiting):
            self.settle()
            self.write_counts()
            self.write("end")
            if self.file is not None:
                self.file.close()
                self.file = None


_OPEN: list[Journal] = []


def of_process(settings: Settings | None = None) -> Journal | None:
    """Return the journal of this process, or None if nothing is watched. A fork gets its own."""
    if _OPEN:
        if _OPEN[0].pid != os.getpid():
            _OPEN[0].begin_anew()
        return _OPEN[0]
    settings = settings or active()
    if settings is None:
        return None
    _OPEN[:] = [Journal(settings.folder / f"process-{os.getpid()}.jsonl")]
    util.Finalize(None, _OPEN[0].end, exitpriority=0)  # A process of multiprocessing ends so.
    return _OPEN[0]


def go_on_in(folder: Path) -> None:
    """Continue the journal in a folder. A fork that becomes an independent process calls this."""
    if _OPEN:
        _OPEN[0].go_on_in(folder)


def count(**more: int) -> None:
    """Add to the counts of this process, if it is watched."""
    lines = of_process()
    if lines is not None:
        lines.count(**more)
