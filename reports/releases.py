"""What was tried, found and not tried in releases of an engine, in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from paritybit.reports.markdown import table, text

from paritybit.launch.schema import RecordedFinding, WatchRecord

FREE, UNTRIED = "–", "?"

COUNTS = {
    "forwards": "forward passes",
    "replays": "replays",
    "padded_replays": "padded",
    "reads": "reads",
}
"""The counts of what was tried, with their heads."""


@dataclass(frozen=True)
class Release:
    """A release and its record. If there is no record, `why` has the reason."""

    version: str
    record: WatchRecord | None
    why: str = ""

    @property
    def tried(self) -> bool:
        """Whether the run of the release has a verdict."""
        return self.record is not None and self.record.verdict != "undecided"

    @property
    def findings(self) -> tuple[RecordedFinding, ...]:
        """The findings of the release."""
        return () if self.record is None else self.record.findings


def causes_in(releases: Sequence[Release]) -> dict[str, list[str]]:
    """Return the causes of all findings in the order of releases, each with its checks."""
    found: dict[str, list[str]] = {}
    for one in (one for release in releases for one in release.findings):
        checks = found.setdefault(one.cause_name, [])
        if one.check not in checks:
            checks.append(one.check)
    return found


def matrix(engine: str, releases: Sequence[Release]) -> str:
    """Return what was tried, found and not tried in each release of an engine."""
    rows = [
        (cause, ", ".join(checks), *(cell(release, cause) for release in releases))
        for cause, checks in causes_in(releases).items()
    ]
    lines = [
        f"# {text(engine)}",
        "",
        *table(["release", "on", "verdict", *COUNTS.values(), "seconds"], map(scope_of, releases)),
        "",
        "## What was found",
        "",
        *table(["cause", "checks", *(release.version for release in releases)], rows),
        "",
        f"Cells have the number of findings, `{FREE}` for none, `{UNTRIED}` without a verdict.",
        "",
        "## What was not tried",
        "",
        *(f"- {text(one.version)}: {text(untried(one))}" for one in releases),
        "",
    ]
    return "\n".join(lines) + "\n"


def cell(release: Release, cause: str) -> str:
    """Return the number of a release's findings with a cause."""
    number = sum(one.number for one in release.findings if one.cause_name == cause)
    return str(number) if number else FREE if release.tried else UNTRIED


def scope_of(release: Release) -> tuple[str, ...]:
    """Return the day and the verdict of a release, and what was tried."""
    record = release.record
    if record is None:
        return release.version, "", "not tried", *("" for _ in COUNTS), ""
    why = "" if release.tried else f": {'; '.join(record.undecided) or record.message}"
    counts = (f"{record.counts.get(name, 0):,}" for name in COUNTS)
    day, verdict = (record.started or "")[:10], f"{record.verdict}{why}"
    return release.version, day, verdict, *counts, f"{record.seconds:.0f}"


def untried(release: Release) -> str:
    """Return what was not tried in a release."""
    if release.record is None:
        return f"all: {release.why}"
    return "; ".join(one.what for one in release.record.not_tried) or "nothing"
