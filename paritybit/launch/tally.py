"""The totals of the journals of a command, or of one configuration of a plan."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from paritybit.drive.script import Script, require_sense
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.launch.journals import Entry
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
    waves: list[Any] = field(default_factory=list)
    touched: dict[object, dict[str, "Order"]] = field(default_factory=dict)
    """When each cause had its first finding about each request, slot and forward."""


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

    def take(self, process: str, entry: Entry) -> RecordedFinding | None:
        """Add an entry. Returns a finding if it is the first of its key."""
        entry = without_paths(entry)
        mine = self.processes.setdefault(process, Process())
        match entry["kind"]:
            case "start":
                known = {name: entry.get(name) for name in STARTED}
                texts = {name: None if one is None else str(one) for name, one in known.items()}
                mine.started = ProcessRecord(**texts, ended=False)
            case "counts":
                mine.counts = values_of(entry.get("counts"), int)
                mine.findings = values_of(entry.get("findings"), int)
            case "finding":
                return self._found(mine, finding_of(entry))
            case "undecided":
                self.undecided.setdefault(str(entry.get("what")))
            case "scope":
                settings = entry.get("settings")
                for name, value in settings.items() if isinstance(settings, Mapping) else ():
                    values = self.settings.setdefault(str(name), [])
                    values += [str(value)] if str(value) not in values else []
            case "stand_in":
                self.stand_ins.setdefault(str(entry.get("what")), str(entry.get("why")))
            case "script":
                mine.script, mine.waves = entry, []
            case "wave" if len(mine.waves) <= MOST_WAVES:
                mine.waves.append(entry.get("wave"))
            case "kernels":
                for name, ran in values_of(entry.get("ran"), bool).items():
                    self.kernels[name] = ran or self.kernels.get(name, False)
            case "end" if mine.started is not None:
                mine.started = msgspec.structs.replace(mine.started, ended=True)
        return None

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
        with suppress(ValueError):
            if "settings" in process.script and len(process.waves) <= MOST_WAVES:
                data = {"settings": process.script["settings"], "waves": process.waves}
                script = msgspec.convert(data, Script)
                require_sense(script)
                return script
        return None

    @property
    def started(self) -> tuple[ProcessRecord, ...]:
        """The processes that loaded an engine."""
        return tuple(one.started for one in self.processes.values() if one.started is not None)

    def count(self, name: str) -> int:
        """Return a count over all processes."""
        return self.counts().get(name, 0)

    def counts(self) -> dict[str, int]:
        """Return all counts over all processes, by name."""
        total = Counter[str]()
        for process in self.processes.values():
            total.update(process.counts)
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
