"""Describes a finding in words, for the terminal and the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paritybit.launch.schema import Finding, Who


def lines_of(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line about a finding."""
    yield "where", ", ".join(where(finding))
    yield "written", f"last written by {by(finding.writer)}" if finding.writer else "not known"
    if finding.freed is not None:
        yield "freed", f"freed{at(finding.freed)}"
    if finding.reader is not None:
        yield "read", f"read by {by(finding.reader)}"
    yield "cause", why(finding)
    if finding.known is not None:
        yield "known", finding.known


def where(finding: Finding) -> Iterator[str]:
    """Yield the location of a finding: group, layer, slots, forward."""
    if finding.group is not None:
        yield f"group {finding.group}"
    if finding.layer is not None:
        yield finding.layer
    if finding.slots:
        rest = finding.count - 1
        more = f" and {rest} more" if rest > 0 else ""
        yield f"slot {finding.slots[0]}{more}"
    kind = f" ({finding.kind})" if finding.kind else ""
    yield f"forward {finding.forward}{kind}" if finding.forward is not None else "between forwards"
    if finding.replay is not None:
        yield f"replay of {finding.replay}"


def by(who: Who) -> str:
    """Return a request, its position and its forward as text."""
    name = f"request {who.request}" if who.request is not None else "a request that is not known"
    place = f", position {who.position}" if who.position is not None else ""
    return f"{name}{place}{f', in forward {who.forward}' if who.forward is not None else ''}"


def at(who: Who) -> str:
    """Return the request, the forward and the line of a free as text, as far as they are known."""
    request = f" by request {who.request}" if who.request is not None else ""
    forward = f" before forward {who.forward}" if who.forward is not None else ""
    return f"{request}{forward}{f' by {who.source}' if who.source is not None else ''}"


def why(finding: Finding) -> str:
    """Return the cause as text. For a static input, it has the name and the line that fills it."""
    cause = finding.cause
    if cause is None:
        return "not known"
    source = f" ({cause.source})" if cause.source else ""
    named = "" if cause.input is None or cause.input in cause.what else f"{cause.input}: "
    return f"{named}{cause.what}{source}"


def source_of(finding: Finding) -> tuple[str, int] | None:
    """Return the file and line of the cause of a finding, or else of the free. None if unknown."""
    for source in (finding.cause and finding.cause.source, finding.freed and finding.freed.source):
        path, _, line = (source or "").rpartition(":")
        if path and line.isdecimal() and int(line) > 0:
            return path, int(line)
    return None


@dataclass(frozen=True)
class CauseGroup:
    """The findings with one cause, and their common description."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def explained(self) -> bool:
        """Whether an experiment has shown that a static input is the cause."""
        return any(one.cause is not None and one.cause.input for one in self.findings)

    @property
    def known(self) -> str | None:
        """Where the cause is known from, if all of its findings are known."""
        known = [one.known for one in self.findings]
        return None if None in known else known[0]

    @property
    def place(self) -> str | None:
        """The line of the cause or else of the free, such as `at engine/pool.py:12`, or None."""
        for finding in self.findings:
            if (found := source_of(finding)) is not None:
                known = finding.cause is not None and finding.cause.source
                return f"{'at' if known else 'freed at'} {found[0]}:{found[1]}"
        return None

    @property
    def count(self) -> str:
        """The number of findings of each check, as text."""
        checks: dict[str, int] = {}
        for finding in self.findings:
            checks[finding.check] = checks.get(finding.check, 0) + finding.number
        return ", ".join(f"{number:,} × {check}" for check, number in checks.items())


def causes_of(findings: Sequence[Finding]) -> list[CauseGroup]:
    """Group findings by cause.

    Causes that fail the run come first, and causes that an experiment explains come before others.
    Otherwise the order of the findings is kept.
    """
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.group_of, []).append(finding)
    found = [CauseGroup(name, tuple(members)) for name, members in groups.items()]
    return sorted(found, key=lambda group: (group.known is not None, not group.explained))


def plural(number: int, word: str) -> str:
    """Return a count with its noun."""
    return f"{number:,} {word}{'s' * (number != 1)}"
