"""The totals of the journals of a command, or of one configuration of a plan."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from paritybit.drive.script import Script, require_sense
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.launch.journals import Entry
from paritybit.launch.ranks import Agreement, name_of
from paritybit.launch.schema import ProcessRecord, RecordedFinding, finding_of

Value = TypeVar("Value")

STARTED = ("engine", "release", "device", "torch", "python")
"""The fields of a `start` line that the record keeps."""

MOST_WAVES = 10_000
"""The most waves of a script."""

Order = tuple[int, bool, int]
"""When a finding occurred: its forward, whether its cause is not known, and its number."""


def subjects_of(finding: RecordedFinding) -> Iterator[tuple[object, ...]]:
    """Yield the requests and slots that a finding is about."""
    for who in (finding.reader, finding.writer):
        if who is not None and who.request is not None:
            yield "request", who.request
    yield from (("slot", finding.group, slot) for slot in finding.slots)


@dataclass
class Process:
    """A process that wrote a journal.

    `counts` and `findings` are its last totals, and `written` the number of written findings by
    key.
    """

    started: ProcessRecord | None = None
    counts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    written: Counter[str] = field(default_factory=Counter)
    script: Entry = field(default_factory=dict)
    waves: list[Entry] = field(default_factory=list)
    first: int | None = None
    """The forward of its first finding."""
    waits: Entry = field(default_factory=dict)
    """The forward in which it waits, and its line, if it has not gone on."""
    touched: dict[object, dict[str, "Order"]] = field(default_factory=dict)
    """When each cause had its first finding, by request, slot and forward."""

    def serve(self, entry: Entry) -> None:
        """Add a wave, or to the last one, when it was left."""
        if entry["kind"] == "wave":
            self.waves += [entry] if len(self.waves) <= MOST_WAVES else []
        elif self.waves and isinstance(wave := self.waves[-1].get("wave"), Mapping):
            self.waves[-1] = {**self.waves[-1], "wave": {**wave, "left": entry.get("poll")}}


@dataclass
class Tally:
    """Totals over processes.

    `findings` has the first finding of each key, `orders` when it occurred, and `played` its
    process as it was then, with its waves. `kernels` tells whether a function for Triton ran.
    """

    processes: dict[str, Process] = field(default_factory=dict)
    findings: dict[str, RecordedFinding] = field(default_factory=dict)
    undecided: dict[str, None] = field(default_factory=dict)
    settings: dict[str, list[str]] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)
    played: dict[str, Process] = field(default_factory=dict)
    orders: dict[str, "Order"] = field(default_factory=dict)
    kernels: dict[str, bool] = field(default_factory=dict)
    agreement: Agreement = field(default_factory=Agreement)
    times: dict[str, float] = field(default_factory=dict)
    """When each finding was first written, in seconds since the epoch."""
    died: tuple[str, ...] = ()
    """The ranks that ended before the others, without closing their journals."""

    def take(self, process: str, entry: Entry) -> RecordedFinding | None:
        """Add an entry. Returns a finding if it is the first of its key."""
        entry = without_paths(entry)
        mine = self.processes.setdefault(process, Process())
        match entry["kind"]:
            case "start":
                self._start(process, mine, entry)
            case "counts":
                mine.counts = values_of(entry.get("counts"), int)
                mine.findings = values_of(entry.get("findings"), int)
            case "finding":
                return self._found(mine, self._of_rank(mine, entry))
            case "undecided":
                self.undecided.setdefault(str(entry.get("what")))
            case "scope":
                self._scope(entry.get("settings"))
            case "stand_in":
                self.stand_ins.setdefault(str(entry.get("what")), str(entry.get("why")))
            case "waits":
                mine.waits = entry if entry.get("forward") else {}
            case "script":
                mine.script, mine.waves = entry, []
            case "wave" | "leave":
                mine.serve(entry)
            case "kernels":
                ran, before = values_of(entry.get("ran"), bool), self.kernels
                before |= {name: one or before.get(name, False) for name, one in ran.items()}
            case "end" if mine.started is not None:
                mine.started = msgspec.structs.replace(mine.started, ended=True)
        if entry["kind"] == "digests":
            return self._disagree(self.agreement.take(process, entry.get("given"), self.firsts))
        return None

    def _start(self, process: str, mine: Process, entry: Entry) -> None:
        known = {name: entry.get(name) for name in STARTED}
        texts = {name: None if one is None else str(one) for name, one in known.items()}
        rank, sizes = (values_of(entry.get(name), int) for name in ("rank", "ranks"))
        started: dict[str, Any] = {**texts, "ended": False, "rank": name_of(rank)}
        mine.started = ProcessRecord(**started)
        self.agreement.start(process, rank, sizes)

    def _scope(self, settings: object) -> None:
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            values = self.settings.setdefault(str(name), [])
            values += [str(value)] if str(value) not in values else []

    def _of_rank(self, mine: Process, entry: Entry) -> RecordedFinding:
        """Return the finding of a process, with its rank."""
        found = finding_of(entry)
        mine.first = mine.first or found.forward
        self.times.setdefault(found.key, entry.get("time", 0.0))
        rank = "" if mine.started is None else mine.started.rank
        return msgspec.structs.replace(found, rank=rank)

    def finish(self) -> RecordedFinding | None:
        """Compare what is left of the digests when the processes have ended."""
        return self._disagree(self.agreement.finish(self.firsts))

    @property
    def firsts(self) -> dict[str, int]:
        """The forward of the first finding of each process that has one."""
        return {name: one.first for name, one in self.processes.items() if one.first is not None}

    def _disagree(self, given: Iterable[tuple[str, RecordedFinding]]) -> RecordedFinding | None:
        """Add findings of several ranks. Returns the first one that is the first of its key."""
        new = [self._found(self.processes[process], one) for process, one in given]
        return next(filter(None, new), None)

    def _found(self, process: Process, finding: RecordedFinding) -> RecordedFinding | None:
        key = finding.key
        process.written[key] += 1
        number = finding.forward or 0
        order = number, finding.cause is None, sum(process.written.values())
        for one in (*subjects_of(finding), ("forward", finding.forward)):
            process.touched.setdefault(one, {}).setdefault(finding.cause_name, order)
        if (before := self.findings.get(key)) is not None:
            if before.source is None and finding.source is not None:
                # The line has been learned since.
                self.findings[key] = msgspec.structs.replace(
                    before, cause=finding.cause, excerpt=finding.excerpt
                )
            return None
        self.orders[key] = order
        self.findings[key] = finding
        self.played[key] = replace(process, waves=process.waves[:])
        return finding

    def after(self, key: str) -> str | None:
        """Return the first cause with an earlier finding about the same request or slot.

        If no cause is known, one in the same forward counts, too: known causes come first in it.
        """
        finding, process = self.findings[key], self.played[key]
        subjects = [*subjects_of(finding)]
        if not subjects or finding.cause is None:
            subjects.append(("forward", finding.forward))
        earlier = [
            (order, cause)
            for subject in subjects
            for cause, order in process.touched.get(subject, {}).items()
            if cause != finding.cause_name and order < self.orders[key]
        ]
        return min(earlier)[1] if earlier else None

    def script(self, key: str) -> Script | None:
        """Return the script until the finding with a key, or None if it is too long or missing."""
        process = self.played[key]
        if not process.script:  # Another rank serves the requests of all.
            served = (one for one in self.processes.values() if one.script)
            process, until = next(served, process), self.times.get(key, math.inf)
            waves = [one for one in process.waves if one.get("time", 0.0) <= until]
            process = replace(process, waves=waves)
        with suppress(ValueError):
            if "settings" in process.script and len(process.waves) <= MOST_WAVES:
                waves_data = [one.get("wave") for one in process.waves]
                data = {"settings": process.script["settings"], "waves": waves_data}
                script = msgspec.convert(data, Script)
                require_sense(script)
                return script
        return None

    @property
    def started(self) -> tuple[ProcessRecord, ...]:
        """The processes that loaded an engine."""
        return tuple(
            msgspec.structs.replace(
                one.started, counts=dict(one.counts) if one.started.rank else {}
            )
            for one in self.processes.values()
            if one.started is not None
        )

    def of_ranks(self) -> dict[str, dict[str, int]]:
        """Return the counts of each rank, by its name. There are none for one rank."""
        found: dict[str, Counter[str]] = {}
        for process in self.started:
            if process.rank:
                found.setdefault(process.rank, Counter()).update(process.counts)
        return {name: dict(found[name]) for name in sorted(found)}

    def ranks_with(self, key: str) -> tuple[str, ...]:
        """Return the ranks that have a finding with a key."""
        has = (one for one in self.processes.values() if one.written[key] or key in one.findings)
        return tuple(sorted({one.started.rank for one in has if one.started} - {""}))

    def count(self, name: str) -> int:
        """Return a count over all processes."""
        return self.counts().get(name, 0)

    def counts(self) -> dict[str, int]:
        """Return all counts over all processes, by name."""
        total = Counter[str]()
        for process in self.processes.values():
            total.update(process.counts)
        total.update(self.agreement.counts())
        return dict(total)

    def number(self, key: str) -> int:
        """Return the number of findings with a key. A kill may lose the last counts."""
        return sum(
            max(process.findings.get(key, 0), process.written[key])
            for process in self.processes.values()
        )


def values_of(value: object, kind: type[Value]) -> dict[str, Value]:
    """Return the entries of a JSON object whose values are of a type."""
    entries = value.items() if isinstance(value, Mapping) else ()
    return {str(without_paths(name)): one for name, one in entries if type(one) is kind}
