"""Describes a finding in words, for the terminal and the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paritybit.launch.schema import Cause, RecordedFinding, Who

AGAIN: Mapping[bool | None, str] = {
    True: "its case shows the finding again",
    False: "its case did not show the finding again, which needs more than these requests",
    None: "its case was not replayed in this run",
}


def lines_of(finding: RecordedFinding) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line about a finding."""
    yield "where", ", ".join(where(finding))
    if finding.writer is not None:
        yield "written", f"last written by {by(finding.writer)}"
    if finding.freed is not None:
        yield "freed", f"freed{at(finding.freed)}"
    if finding.origin is not None:
        yield "slot", finding.origin
    if finding.reader is not None:
        yield "read", f"read by {by(finding.reader)}"
    if finding.cause is not None:
        yield "cause", why(finding.cause)
    if finding.changes:
        changed = "; ".join(
            f"{one.source}{f' in {one.function}' if one.function else ''}, since {one.base}"
            for one in finding.changes
        )
        yield "changed", f"{changed}; undone, the finding does not appear"
    if finding.known is not None:
        yield "known", finding.known
    elif finding.case is not None:
        yield "replayed", AGAIN[finding.again]


def named(finding: RecordedFinding) -> str:
    """Return the check, the rank if there are several, and the text of a finding."""
    return f"{finding.check}{f' (rank {finding.rank})' if finding.rank else ''}: {finding.text}"


def text_of(finding: RecordedFinding) -> str:
    """Return a finding and its lines as text."""
    lines = [f"  {name}: {text}" for name, text in lines_of(finding)]
    return "\n".join([named(finding), *lines])


def where(finding: RecordedFinding) -> Iterator[str]:
    """Yield the parts of the location of a finding."""
    if finding.group is not None:
        yield f"group {finding.group}"
    if finding.layer is not None:
        yield finding.layer
    if finding.slots:
        rest = finding.count - 1
        more = f" and {rest} more" if rest > 0 else ""
        yield f"slot {finding.slots[0]}{more}"
    kind = f" ({finding.forward_kind})" if finding.forward_kind else ""
    when = f"forward {finding.forward}{kind}" if finding.forward is not None else "between forwards"
    yield f"{when} of rank {finding.rank}" if finding.rank else when
    if others := [rank for rank in finding.ranks if rank not in finding.rank.split(", ")]:
        yield f"also in rank {' and '.join(others)}"
    if finding.replay is not None:
        yield f"replay of {finding.replay}"


def by(who: Who) -> str:
    """Return who wrote or read a slot, as text."""
    name = f"request {who.request}" if who.request is not None else "a request that is not known"
    place = f", position {who.position}" if who.position is not None else ""
    return f"{name}{place}{f', in forward {who.forward}' if who.forward is not None else ''}"


def at(who: Who) -> str:
    """Return what is known of a free, as text."""
    request = f" by request {who.request}" if who.request is not None else ""
    forward = f" before forward {who.forward}" if who.forward is not None else ""
    return f"{request}{forward}{f' by {called(who)}' if who.source is not None else ''}"


def called(who: Who | Cause) -> str:
    """Return a line of the engine and its callers."""
    return f"{who.source}{f', {who.via}' if who.via is not None else ''}"


def why(cause: Cause) -> str:
    """Return a cause as text."""
    place = called(cause) if cause.source else cause.via
    source = f" ({place})" if place else ""
    named = "" if cause.input is None or cause.input in cause.what else f"{cause.input}: "
    return f"{named}{cause.what}{source}"


def source_of(finding: RecordedFinding) -> tuple[str, int] | None:
    """Return the file and line of a change that causes a finding, of its cause, or of the free."""
    changed = [one.source for one in finding.changes[:1]]
    for source in (*changed, finding.source, finding.freed and finding.freed.source):
        path, _, line = (source or "").rpartition(":")
        if path and line.isdecimal() and int(line) > 0:
            return path, int(line)
    return None


@dataclass(frozen=True)
class CauseGroup:
    """The findings with one cause, most severe first.

    `consequences` are later causes without an experiment of their own, which may follow from it.
    """

    name: str
    findings: tuple[RecordedFinding, ...]
    consequences: tuple["CauseGroup", ...] = ()

    @property
    def shown(self) -> bool:
        """Whether an experiment has shown the cause. A stale input may still have another cause."""
        stale = any(one.check == STALE for one in self.findings)
        return not stale and any(one.cause is not None and one.cause.shown for one in self.findings)

    @property
    def tier(self) -> int:
        """The index in SEVERITY of the tier of its most severe finding."""
        return TIER.get(self.findings[0].check, len(SEVERITY))

    @property
    def known(self) -> str | None:
        """Where all of its findings are known from, or None."""
        known = [one.known for one in self.findings]
        return None if None in known else known[0]

    @property
    def count(self) -> str:
        """The number of findings of each check, as text."""
        checks: dict[str, int] = {}
        for finding in self.findings:
            checks[finding.check] = checks.get(finding.check, 0) + finding.number
        return ", ".join(f"{number:,} × {check}" for check, number in checks.items())

    @property
    def followed(self) -> str | None:
        """How many causes may follow from this one, as text, or None."""
        if not self.consequences:
            return None
        number = sum(one.number for cause in self.consequences for one in cause.findings)
        which = plural(len(self.consequences), "cause")
        return f"{plural(number, 'finding')} with {which} may be consequences"


SEVERITY: tuple[tuple[str, ...], ...] = (
    (
        *("stray write", "wrong owner", "corrupted read", "freed in use", "copy under way"),
        *("double free",),
        *("unwritten slot", "uninitialised read", "wrong list", "wrong read", "wrong row"),
        *("stale input", "graph and eager differ", "ranks disagree", "company", "engine error"),
    ),
    ("kernel race", "padding leak", "unrepeatable replay", "leak"),
    ("moved address", "changed dtype"),
)
"""All checks, most severe first: those that corrupt or misread KV, those that may do so, and those
of contracts that may do no harm."""

STALE = "stale input"

RANK = {check: rank for rank, check in enumerate(check for tier in SEVERITY for check in tier)}
TIER = {check: number for number, tier in enumerate(SEVERITY) for check in tier}


def all_causes(findings: Sequence[RecordedFinding]) -> list[CauseGroup]:
    """Group findings by cause.

    Causes that fail the run come first, then the most severe, then the earliest ones. In one
    forward, known causes come first, and then the most severe ones.
    """
    groups: dict[str, list[RecordedFinding]] = {}
    for finding in findings:
        groups.setdefault(finding.cause_name, []).append(finding)
    configs = list(dict.fromkeys(finding.config for finding in findings))

    def severity(finding: RecordedFinding) -> int:
        return RANK.get(finding.check, len(RANK))

    def order(group: CauseGroup) -> tuple[object, ...]:
        worst = [one for one in group.findings if TIER.get(one.check, len(SEVERITY)) == group.tier]
        first = min((configs.index(one.config), one.forward or 0) for one in worst)
        unknown = all(one.cause is None for one in group.findings)
        return group.known is not None, group.tier, *first, unknown, severity(worst[0])

    found = [
        CauseGroup(name, tuple(sorted(members, key=severity))) for name, members in groups.items()
    ]
    return sorted(found, key=order)


def causes_of(findings: Sequence[RecordedFinding]) -> list[CauseGroup]:
    """Group findings by cause, as `all_causes`, with consequences under the cause before them.

    A cause may be a consequence if no experiment has shown it, and each of its findings is about a
    request, a slot or a forward of an earlier finding. It is one if it needs the same changes of
    the engine as an earlier cause.
    """
    groups = {group.name: group for group in all_causes(findings)}
    roots = {name: root_of(group, groups) for name, group in groups.items()}
    found = []
    for name, group in groups.items():
        if roots[name] is group:
            mine = [one for one in groups.values() if one is not group and roots[one.name] is group]
            found.append(replace(group, consequences=tuple(mine)))
    return found


def root_of(group: CauseGroup, groups: Mapping[str, CauseGroup]) -> CauseGroup:
    """Return the first of the causes that a cause may follow from, or the cause itself.

    No cause follows from a less severe one, or a known one from an unknown one, or vice versa.
    """
    changes = group.findings[0].changes
    alike = (one for one in groups.values() if changes and one.findings[0].changes == changes)
    if (first := next(alike, group)) is not group:  # One change caused both.
        return root_of(first, groups)
    seen, now = {group.name}, group
    while not now.shown and all(one.after in groups for one in now.findings):
        before = groups[str(now.findings[0].after)]
        if before.name in seen:
            return group
        if before.known != now.known or before.tier > now.tier:
            break
        seen.add(before.name)
        now = before
    return now


def plural(number: int, word: str) -> str:
    """Return a count with its noun."""
    return f"{number:,} {word}{'s' * (number != 1)}"
