"""The findings of several releases side by side, in Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paritybit.reports.markdown import table

from paritybit.launch.schema import RecordedFinding, WatchRecord
from paritybit.launch.words import all_causes

FREE, UNTRIED = "–", "?"

COUNTS = ("replays", "padded_replays", "reads")


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
    def causes(self) -> dict[str, tuple[RecordedFinding, ...]]:
        """The findings by cause."""
        found = () if self.record is None else self.record.findings
        return {group.name: group.findings for group in all_causes(found)}

    @property
    def scope(self) -> Iterator[str]:
        """The verdict and what was tried, as cells of a table."""
        record = self.record
        if record is None:
            return iter((f"not tried: {self.why}", *("" for _ in COUNTS), ""))
        why = f": {'; '.join(record.undecided) or record.message}" * (not self.tried)
        counts = (f"{record.counts.get(name, 0):,}" for name in COUNTS)
        return iter((f"{record.verdict}{why}", *counts, f"{record.seconds:.0f}"))


def causes_in(releases: Sequence[Release]) -> list[str]:
    """Return the causes of all findings, ordered by the first release that has each."""
    return list(dict.fromkeys(name for release in releases for name in release.causes))


def matrix(releases: Sequence[Release]) -> str:
    """Return the number of findings by cause and release, and what was tried."""
    names = [release.version for release in releases]
    rows = []
    for cause in causes_in(releases):
        found = [release.causes.get(cause, ()) for release in releases]
        checks = dict.fromkeys(one.check for some in found for one in some)
        numbers = [sum(one.number for one in some) for some in found]
        cells = [
            str(number) if number else FREE if release.tried else UNTRIED
            for release, number in zip(releases, numbers, strict=True)
        ]
        rows.append([cause, ", ".join(checks), *cells])
    lines = [
        "# Findings in whole releases",
        "",
        *table(["cause", "checks", *names], rows),
        "",
        f"Cells have the number of findings, `{FREE}` for none, `{UNTRIED}` without a verdict.",
        "",
        "## What was tried",
        "",
        *table(
            ["release", "verdict", "replays", "padded", "reads", "seconds"],
            ([release.version, *release.scope] for release in releases),
        ),
    ]
    return "\n".join(lines) + "\n"
