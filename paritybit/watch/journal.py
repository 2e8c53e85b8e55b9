"""The journal of one process: a file of JSON lines, `process-PID.jsonl`, that survives a kill.

| kind | fields |
|---|---|
| `start` | engine, release, pid, torch, device, python |
| `counts` | counts: name to number; findings: key to number; both are totals so far |
| `finding` | what `Finding` holds; excerpt: the engine's lines around the one that it names |
| `traffic` | key, requests: what `Recorder.traffic` says before the first finding of a key |
| `undecided` | what |
| `scope` | settings: name to value |
| `stand_in` | what, why |
| `script` | settings: those with which a driver serves an engine |
| `wave` | wave: the requests that it serves next |
| `end` | |

Each line also has `time`, in seconds since the epoch.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from paritybit.watch.excerpts import excerpt
from paritybit.watch.settings import Settings, active

KINDS = (
    *("start", "counts", "finding", "traffic", "undecided", "scope", "stand_in", "script"),
    *("wave", "end"),
)

LARGEST_FILE = 256 * 2**20
"""Bytes of a journal that `read` accepts."""

MOST_ALIKE = 20
"""Findings of one key that are written in full; the counts tell how many there were."""

PAUSE = 0.5
"""Seconds between two records of the counts."""


@dataclass(frozen=True)
class Finding:
    """One violation of a check's law.

    `key` is equal for findings with the same check, group and cause. `slots` are the first few of
    `count`. `writer` says who wrote the slot last, `reader` who reads it, `freed` when it was
    freed: request, position, forward, as far as they are known. `cause` has `what`, and where a
    static input explains the finding, its `input` and `source`; None means that it is not known.
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


@dataclass
class Journal:
    """Writes the lines of one process. All of them are flushed; findings also reach the disk."""

    path: Path
    counts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    pid: int = field(default_factory=os.getpid)
    file: TextIO | None = None
    counted: float = 0.0
    lost: bool = False
    """Whether a line could not be written. The engine goes on, and stderr was told."""

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line. `kind` is one of KINDS; values that JSON lacks are written as text."""
        assert kind in KINDS, kind
        line = {"kind": kind, "time": round(time.time(), 3), **fields}
        try:
            self._append(json.dumps(line, default=str) + "\n", durable=kind == "finding")
        except OSError as error:
            if not self.lost:
                sys.stderr.write(f"paritybit: the journal cannot be written: {error.strerror}\n")
            self.lost = True

    def _append(self, text: str, *, durable: bool) -> None:
        """Write a line and flush it; wait for the disk if it is to be durable."""
        if self.file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.path.open("a", encoding="utf-8")
        self.file.write(text)
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())

    def finding(self, finding: Finding) -> None:
        """Write a finding, or only count it if there were enough of its key."""
        self.findings[finding.key] = number = self.findings.get(finding.key, 0) + 1
        if number <= MOST_ALIKE:
            lines = excerpt(finding.cause, finding.freed)
            self.write("finding", **asdict(finding), excerpt=lines)

    def count(self, **more: int) -> None:
        """Add to the counts. Write them if a name is new, or if they were not for a while."""
        new = not more.keys() <= self.counts.keys()
        for name, number in more.items():
            self.counts[name] = self.counts.get(name, 0) + number
        if new or time.monotonic() - self.counted > PAUSE:
            self.write_counts()

    def write_counts(self) -> None:
        """Write the counts."""
        self.counted = time.monotonic()
        self.write("counts", counts=self.counts, findings=self.findings)

    def once(self, kind: str, **fields: Any) -> None:
        """Write a line unless the same was written before."""
        text = json.dumps([kind, fields], default=str, sort_keys=True)
        if text not in self.said and len(self.said) < 10_000:
            self.said.add(text)
            self.write(kind, **fields)

    def undecided(self, what: str) -> None:
        """Say, once, that something could not be judged. The run then has no verdict of 0."""
        self.once("undecided", what=what)

    def scope(self, **settings: object) -> None:
        """State settings that were in use, such as a backend or a page size."""
        self.once("scope", settings=settings)

    def stand_in(self, what: str, why: str) -> None:
        """State that something of the engine was replaced, and why."""
        self.once("stand_in", what=what, why=why)

    def begin_anew(self) -> None:
        """Write to a file of this process's own from now on, as a fork of another one."""
        self.pid, self.file = os.getpid(), None
        self.path = self.path.with_name(f"process-{self.pid}.jsonl")
        self.counts, self.findings, self.said = {}, {}, set()

    def go_on_in(self, folder: Path) -> None:
        """Write to a file of this process's own in a folder, after the lines that there are."""
        before, self.pid, self.file = self.path, os.getpid(), None
        self.path = folder / f"process-{self.pid}.jsonl"
        if before.exists():
            shutil.copyfile(before, self.path)

    def end(self) -> None:
        """Write the counts and the last line, and close the file. A fork leaves it alone."""
        if os.getpid() == self.pid and self.file is not None:
            self.write_counts()
            self.write("end")
            self.file.close()
            self.file = None


_OPEN: list[Journal] = []


def of_process(settings: Settings | None = None) -> Journal | None:
    """Return this process's journal, or None if nothing is watched. A fork gets its own."""
    if _OPEN:
        if _OPEN[0].pid != os.getpid():
            _OPEN[0].begin_anew()
        return _OPEN[0]
    settings = settings or active()
    if settings is None:
        return None
    _OPEN[:] = [Journal(settings.folder / f"process-{os.getpid()}.jsonl")]
    return _OPEN[0]


def go_on_in(folder: Path) -> None:
    """Write to a folder from now on, as a fork that becomes a process of its own."""
    if _OPEN:
        _OPEN[0].go_on_in(folder)


def count(**more: int) -> None:
    """Add to the counts of this process, if anything is watched."""
    lines = of_process()
    if lines is not None:
        lines.count(**more)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal.

    The last line may be incomplete, as a kill leaves it, and is then left out. Raises ValueError
    for anything else that is no journal.
    """
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path.name} has more than {LARGEST_FILE} bytes")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith("\n"):
                return
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            if not isinstance(line, dict) or line.get("kind") not in KINDS:
                raise ValueError(f"{path.name}:{number} is no line of a journal")
            yield line
