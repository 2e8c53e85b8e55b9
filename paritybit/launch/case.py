"""Cases of the sanitizer: what to serve a whole engine with to see a finding again.

A case names an engine's settings by the name of a leg. It holds no command and no option, and it
does not choose which engine runs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paritybit.launch.record import write_data
from paritybit.launch.schema import Watched
from paritybit.launch.words import causes_of

FORMAT = "paritybit-watch-case"
VERSION = 1

MOST_SECONDS = 3600.0
"""The longest time for which a case may ask an engine to be served."""


@dataclass(frozen=True)
class WatchCase:
    """A finding, and how to see it again.

    `leg` names the settings, `seconds` is how long the leg was to be served. `key` is that of the
    finding, which `text` describes; `forward` is where it was first seen.
    """

    engine: str
    model: str
    device: str
    seed: int
    leg: str
    seconds: float
    every: int
    checks: tuple[str, ...] | None
    key: str
    text: str
    forward: int | None


def cases_of(record: Watched, seconds: dict[str, float]) -> dict[str, WatchCase]:
    """Return the cases for the findings of a record, by file name.

    `seconds` says how long each leg was to be served. Findings of one cause share a case, that of
    the first. A record of a command has no cases: paritybit does not know what the command did.
    """
    if record.engine is None or record.model is None or record.device is None:
        return {}
    firsts = [group.findings[0] for group in causes_of(record.findings)]
    return {
        f"finding-{number}.json": WatchCase(
            engine=record.engine,
            model=record.model,
            device=record.device,
            seed=record.seed or 0,
            leg=finding.leg,
            seconds=seconds[finding.leg],
            every=record.every,
            checks=record.checks,
            key=finding.key,
            text=finding.text,
            forward=finding.forward,
        )
        for number, finding in enumerate(firsts, 1)
    }


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
