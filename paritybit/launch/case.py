"""Cases of the sanitizer: the requests that reproduce a finding in a whole engine.

A case contains no command, and does not determine which engine runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from paritybit.drive.script import Script, require_sense
from paritybit.harness.records.codec import File
from paritybit.launch.record import check_names
from paritybit.launch.schema import NOT_KNOWN, RecordedFinding, WatchRecord
from paritybit.launch.verdict import ConfigOutcome
from paritybit.launch.words import all_causes


class WatchCase(File, frozen=True, tag="paritybit-watch-case"):
    """A finding, and the script that reproduces it.

    `forward` and `rank` are where it first occurred. `again` is that of `RecordedFinding`.
    """

    engine: str
    config: str
    script: Script
    every: Annotated[int, msgspec.Meta(ge=1)]
    checks: tuple[str, ...] | None
    key: str
    text: str
    forward: int | None
    rank: str = ""
    again: bool | None = None
    version: Literal[3] = 3

    def __post_init__(self) -> None:
        """Raise ValueError for a script with a request that cannot be served."""
        require_sense(self.script)

    def with_few_checks(self) -> Iterator["WatchCase"]:
        """Yield the case with its own check alone, which is faster, then as it is."""
        own = self.key.split(" | ")[0]
        if own in check_names() and self.checks != (own,):
            yield replace(self, checks=(own,))
        yield self


def cases_of(
    record: WatchRecord,
    outcomes: Iterable[ConfigOutcome],
    again: Mapping[str, bool] = MappingProxyType({}),
) -> dict[str, WatchCase]:
    """Return the cases for the findings of a record, by file name. `again` has that of their keys.

    Findings of the same check and cause share the first one's. A user's command has none.
    """
    tallies = {outcome.name: outcome.tally for outcome in outcomes}
    firsts: dict[tuple[str, str], RecordedFinding] = {}
    for group in all_causes(record.findings):
        for finding in group.findings:
            firsts.setdefault(case_key(finding), finding)
    found = [(one, tallies[one.config].script(one.key)) for one in firsts.values()]
    return {
        f"finding-{number}.json": WatchCase(
            engine=record.engine or NOT_KNOWN,
            config=finding.config,
            script=script,
            every=1 if record.overhead else record.every,
            checks=record.checks,
            key=finding.key,
            text=finding.text,
            forward=finding.forward,
            rank=finding.rank,
            again=again.get(finding.key),
        )
        for number, (finding, script) in enumerate(found, 1)
        if script is not None
    }


def case_key(finding: RecordedFinding) -> tuple[str, str]:
    """Return what findings with the same case have in common."""
    return finding.check, finding.cause_name


def with_cases(record: WatchRecord, cases: Mapping[str, WatchCase]) -> WatchRecord:
    """Return a record whose findings name their cases, and say what a replay of these showed."""
    names = {case.key: (name, case.again) for name, case in cases.items()}
    of = {case_key(one): names[one.key] for one in record.findings if one.key in names}
    none = None, None
    given = ((one, *of.get(case_key(one), none)) for one in record.findings)
    findings = tuple(replace(one, case=name, again=again) for one, name, again in given)
    return replace(record, findings=findings)
