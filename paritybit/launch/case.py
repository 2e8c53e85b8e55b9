"""Cases of the sanitizer: what to serve a whole engine to see a finding again.

A case holds a request script. It holds no command and no option, and it does not choose which
engine runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paritybit.drive.script import Script
from paritybit.launch.record import write_data
from paritybit.launch.schema import Watched
from paritybit.launch.tally import Tally
from paritybit.launch.verdict import Outcome
from paritybit.launch.words import causes_of

FORMAT = "paritybit-watch-case"
VERSION = 2


@dataclass(frozen=True)
class WatchCase:
    """A finding, and how to see it again.

    `leg` names what was tried when it was found. `key` is that of the finding, which `text`
    describes; `forward` is where it was first seen.
    """

    engine: str
    leg: str
    script: Script
    every: int
    checks: tuple[str, ...] | None
    key: str
    text: str
    forward: int | None


def cases_of(record: Watched, outcomes: Iterable[Outcome]) -> dict[str, WatchCase]:
    """Return the cases for the findings of a record, by file name.

    Findings of one cause share a case, that of the first. The case of a command's finding has
    requests like those that were recorded before it.
    """
    tallies = {outcome.name: outcome.tally for outcome in outcomes}
    firsts = [group.findings[0] for group in causes_of(record.findings)]
    scripts = [tallies[finding.leg].script(finding.key) for finding in firsts]
    return {
        f"finding-{number}.json": WatchCase(
            engine=record.engine or release_of(tallies[finding.leg]),
            leg=finding.leg,
            script=script,
            every=record.every,
            checks=record.checks,
            key=finding.key,
            text=finding.text,
            forward=finding.forward,
        )
        for number, (finding, script) in enumerate(zip(firsts, scripts, strict=True), 1)
        if script is not None
    }


def release_of(tally: Tally) -> str:
    """Return the release that a command loaded, as `NAME==VERSION`."""
    started = next((one.started for one in tally.processes.values() if one.started), {})
    return f"{started.get('engine')}=={started.get('release')}"


def named(record: Watched, cases: Mapping[str, WatchCase]) -> Watched:
    """Return a record whose findings name their case: that of the first finding of their cause."""
    names = {case.key: name for name, case in cases.items()}
    of_cause = {
        finding.group_of: names[finding.key] for finding in record.findings if finding.key in names
    }
    findings = tuple(
        replace(finding, case=of_cause.get(finding.group_of)) for finding in record.findings
    )
    return replace(record, findings=findings)


def write(case: WatchCase, path: Path) -> None:
    """Write a case. Raises CannotRunError where it cannot be written."""
    write_data({"format": FORMAT, "version": VERSION, **asdict(case)}, path)
