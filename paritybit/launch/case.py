"""Cases of the sanitizer: the requests that reproduce a finding in a whole engine.

A case contains a request script. It contains no command and no option, and it does not determine
which engine runs.
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
    """A finding, and the script that reproduces it.

    - `leg`: the name of the leg in which it was found.
    - `key`, `text`: the key of the finding, and its description.
    - `forward`: the forward in which it first occurred.
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

    Findings with the same cause share the case of the first finding. If a user's command had the
    finding, the case has generated requests with the shape of the recorded ones.
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
    """Return the engine that a command loaded, as `NAME==VERSION`."""
    started = next((one.started for one in tally.processes.values() if one.started), {})
    return f"{started.get('engine')}=={started.get('release')}"


def named(record: Watched, cases: Mapping[str, WatchCase]) -> Watched:
    """Return a record whose findings have the file name of their case.

    It is the case of the first finding with the same cause.
    """
    names = {case.key: name for name, case in cases.items()}
    of_cause = {
        finding.group_of: names[finding.key] for finding in record.findings if finding.key in names
    }
    findings = tuple(
        replace(finding, case=of_cause.get(finding.group_of)) for finding in record.findings
    )
    return replace(record, findings=findings)


def write(case: WatchCase, path: Path) -> None:
    """Write a case. Raises CannotRunError if the file cannot be written."""
    write_data({"format": FORMAT, "version": VERSION, **asdict(case)}, path)
