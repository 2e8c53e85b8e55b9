"""A matrix of findings and releases, from records of `paritybit watch`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paritybit.launch.schema import Finding, WatchRecord
from paritybit.launch.words import all_causes

PULLS = "https://github.com/sgl-project/sglang/pull"

THREADS: Mapping[str, str] = {
    "out_cache_loc_swa": f"{PULLS}/24743",
    "padded rows in the index lists": f"{PULLS}/26292",
}
"""The public thread about a cause."""

FREE, UNTRIED = "–", "?"


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

    def findings(self, cause: str) -> tuple[Finding, ...]:
        """Return the findings with a cause."""
        groups = all_causes(self.record.findings) if self.record is not None else ()
        return next((group.findings for group in groups if group.name == cause), ())

    def cell(self, cause: str) -> str:
        """Return the cell of the matrix: the number of findings with a cause."""
        found = self.findings(cause)
        if found:
            return str(sum(one.number for one in found))
        return FREE if self.tried else UNTRIED


def causes(releases: Sequence[Release]) -> list[str]:
    """Return the causes of all findings, ordered by the first release that has each."""
    return list(
        dict.fromkeys(
            group.name
            for release in releases
            if release.record is not None
            for group in all_causes(release.record.findings)
        )
    )


def table(releases: Sequence[Release]) -> list[str]:
    """Return the matrix as lines of Markdown, with a row per cause and a column per release."""
    names = [release.version for release in releases]
    lines = [
        f"| cause | checks | {' | '.join(names)} | thread |",
        f"|---|---|{'---|' * len(names)}---|",
    ]
    for cause in causes(releases):
        found = [one for release in releases for one in release.findings(cause)]
        checks = ", ".join(dict.fromkeys(one.check for one in found))
        cells = " | ".join(release.cell(cause) for release in releases)
        thread = THREADS.get(cause)
        link = f"[#{thread.rpartition('/')[2]}]({thread})" if thread else "none known"
        lines.append(f"| {cause} | {checks} | {cells} | {link} |")
    return lines


def scope(releases: Sequence[Release]) -> list[str]:
    """Return the scope of the run of each release as lines of Markdown."""
    lines = [
        "| release | verdict | replays | padded | reads | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for release in releases:
        record = release.record
        if record is None:
            lines.append(f"| {release.version} | not tried: {release.why} | | | | |")
            continue
        numbers = [record.counts.get(name, 0) for name in ("replays", "padded_replays", "reads")]
        verdict: str = record.verdict
        if not release.tried:
            verdict += f": {'; '.join(record.undecided) or record.message}"
        lines.append(
            f"| {release.version} | {verdict} | {' | '.join(f'{one:,}' for one in numbers)} "
            f"| {record.seconds:.0f} |"
        )
    return lines
