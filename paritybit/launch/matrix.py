"""A matrix of findings and releases, from records of `paritybit watch`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paritybit.drive.script import Script
from paritybit.launch.schema import Finding, Watched
from paritybit.launch.words import all_causes, lines_of

PULLS = "https://github.com/sgl-project/sglang/pull"

THREADS: Mapping[str, str] = {
    "out_cache_loc_swa": f"{PULLS}/24743",
    "padded rows in the index lists": f"{PULLS}/26292",
}
"""The public thread about a cause."""

FREE, UNTRIED = "–", "?"


@dataclass(frozen=True)
class Release:
    """A release and its record. If there is no record, `why` has the reason.

    `smallest` has the smallest known script for each cause.
    """

    version: str
    record: Watched | None
    why: str = ""
    smallest: Mapping[str, Script] = field(default_factory=dict)

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


def script_lines(script: Script) -> list[str]:
    """Return a script as lines of Markdown: its settings, and a row per request."""
    settings = ", ".join(f"{name} {value}" for name, value in script.settings.items())
    lines = [
        f"Settings: {settings}.",
        "",
        "| wave | request | prompt | tokens | arrives at poll | aborted at | follows |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, wave in enumerate(script.waves):
        for one in wave.requests:
            prompt = " + ".join(f"{part.length} of {part.text}" for part in one.prompt)
            lines.append(
                f"| {number} | {one.name} | {prompt} | {one.tokens} | {one.arrives} "
                f"| {FREE if one.aborted is None else one.aborted} | {one.follows or FREE} |"
            )
    lines += [
        f"- wave {number}: {action.what} at poll {action.at}, for {action.lasts} polls"
        for number, wave in enumerate(script.waves)
        for action in wave.actions
    ]
    return lines


def report(cause: str, releases: Sequence[Release], laws: Mapping[str, str]) -> list[str]:
    """Return a report about a cause for a maintainer, as lines of Markdown.

    It contains the smallest script of all releases. `laws` has the law of each check.
    """
    having = [release for release in releases if release.findings(cause)]
    found = having[-1].findings(cause)
    lines = [f"# {cause}", "", f"Releases: {', '.join(one.version for one in having)}.", ""]
    for check in dict.fromkeys(one.check for one in found):
        lines.append(f"- {check}: {laws.get(check, 'not described')}.")
    lines += ["", f"In {having[-1].version}:", ""]
    for one in found:
        lines.append(f"- {one.check}: {one.text}")
        lines += [f"  - {name}: {words}" for name, words in lines_of(one)]
    scripts = [
        (script.requests, release.version, script)
        for release in having
        for name, script in release.smallest.items()
        if name == cause
    ]
    if scripts:
        _, version, script = min(scripts, key=lambda one: one[:2])
        lines += ["", f"The smallest script that was found, on {version}:", ""]
        lines += script_lines(script)
    return lines
