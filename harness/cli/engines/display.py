"""An engine's trial, and a walk over releases, in the terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paritybit.harness.cli.engines.matrix import Walked, cells, runners_of
from paritybit.harness.engines.adapters.packages import SGLANG, Package
from paritybit.harness.engines.faults import Verdict
from paritybit.harness.engines.progress import Played, TimeLeft
from paritybit.harness.engines.worker import LegAnswer
from paritybit.reports.verdicts import of_faults
from rich.console import Console
from rich.table import Table

MARKS = {Verdict.PRESENT: "● present", Verdict.ABSENT: "○ absent", Verdict.UNDECIDED: "? undecided"}


class Telling:
    """Says how legs come along: a line for each schedule of one, and one as it ends.

    Each line begins with the seconds gone, and ends with an estimate of the time left. The
    same lines are written to a terminal and to a file.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.clock = clock
        self.begin(())

    def begin(self, legs: Sequence[str]) -> None:
        """Hear which legs there are; their time begins now."""
        self.left = TimeLeft(legs, self.clock)

    def hear(self, played: Played) -> None:
        """Say what a leg has played so far, and what of that differs."""
        self.left.play(played)
        found = (
            f"violates {', '.join(played.violated)}" if played.violated else "no difference found"
        )
        self._say(
            f"{played.leg}: {played.done} of {played.planned} {played.unit}, "
            f"{played.replays} replays ({played.padded} padded): {found}"
        )

    def on_leg(self, said: LegAnswer) -> None:
        """Say what a leg has come to."""
        self.left.end(said.leg)
        found = [f"{one['property']}: {one['message']}" for one in said.findings]
        if said.undecided is not None:
            found.append(f"undecided: {said.undecided}")
        if said.lacking is not None:
            found.append(f"not tried: {said.lacking}")
        self._say(f"{said.leg} finished: {'; '.join(found) or 'no difference found'}")

    def _say(self, words: str) -> None:
        gone, left = self.clock() - self.left.started, self.left.seconds
        more = f"; {duration(left)} left" if left is not None else ""
        line = f"{gone:4.0f} s  {words}{more}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Return an estimate of a time in words: in steps of ten seconds, or in minutes."""
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    return f"about {seconds / 60:.0f} min"


def fault_table(record: Mapping[str, Any]) -> Table:
    """Return faults by runner."""
    table = Table(title=f"faults in {record['engine']}, judged by its behaviour", box=None)
    for column in ("fault", "runner", "verdict", "seen", "how"):
        table.add_column(column, justify="right" if column == "seen" else "left")
    for judged in of_faults(record["answer"]):
        table.add_row(
            judged["fault"],
            judged["runner"],
            MARKS[Verdict(judged["verdict"])],
            str(judged["observations"]),
            judged["message"],
        )
    return table


def property_table(record: Mapping[str, Any]) -> Table:
    """Return the properties that were violated, by leg: in how many schedules of how many."""
    table = Table(title="violated properties, by runner and model", box=None)
    for column in ("trial", "property", "schedules", "first violation"):
        table.add_column(column, justify="right" if column == "schedules" else "left")
    for leg in record["answer"]["legs"]:
        for name, found in leg["properties"].items():
            if found["violated"]:
                schedules = f"{found['violated']}/{found['asked']}"
                table.add_row(leg["leg"], name, schedules, found["message"])
    return table


def padding_table(record: Mapping[str, Any]) -> Table:
    """Return what the decode runner's padding holds, by buffer."""
    table = Table(title="padding contents, and whether a live row reads them", box=None)
    for column in ("runner", "buffer", "dtype", "verdict", "tried"):
        table.add_column(column, justify="right" if column == "tried" else "left")
    merged: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in record["answer"]["padding"]:
        merged.setdefault((entry["runner"], entry["buffer"]), []).append(entry)
    for (runner, buffer), entries in merged.items():
        worst = max(entries, key=lambda entry: (entry["moved"] > 0, entry["outlived"] > 0))
        disturbed = sum(entry["disturbed"] for entry in entries)
        table.add_row(runner, buffer, worst["dtype"], worst["verdict"], str(disturbed))
    return table


def notes(record: Mapping[str, Any]) -> list[str]:
    """Return what else a reader must know.

    That is: what ran, each finding, what could not be asked, what was not the engine's.
    """
    answer = record["answer"]
    replays = sum(leg["replays"] for leg in answer["legs"])
    padded = sum(leg["padded"] for leg in answer["legs"])
    return [
        f"{replays} replays ({padded} padded) in {answer['seconds']:.0f} s",
        *(finding_line(finding) for finding in answer["findings"]),
        *answer["notes"],
        *(f"{entry['runner']} is not available: {entry['reason']}" for entry in answer["lacking"]),
        *(
            f"not checked on {', '.join(group['legs'])}: "
            f"{', '.join(group['properties'])}: {group['reason']}"
            for group in record["unasked"]
        ),
        f"stubbed modules: {', '.join(answer['stubs'])}",
        *(f"replaced: {part}" for part in answer["emulated"]),
        *(f"undecided: {entry['leg']}: {entry['reason']}" for entry in answer["undecided"]),
    ]


def finding_line(finding: Mapping[str, Any]) -> str:
    """Return a finding in one line: where, what, which fault class, and why if that was proved."""
    classes = f" ({', '.join(finding['faults'])})" if finding["faults"] else ""
    cause = f"; cause: {finding['cause']}" if finding["cause"] else ""
    why = f"; {finding['listed']}" if finding["listed"] else ""
    kind = "known difference, not a finding" if finding["listed"] else "finding"
    where = f"{finding['runner']} {finding['preset']}"
    return f"{kind}: {finding['property']} on {where}{classes}: {finding['message']}{cause}{why}"


def runner_table(walked: Walked, package: Package = SGLANG, asked: Sequence[str] = ()) -> Table:
    """Return what was found of each runner, or of those asked for, by release."""
    runners = runners_of(package, asked)
    table = Table(
        title="differences by runner; – the engine lacks the runner, ? undecided", box=None
    )
    for column in ("release", *runners):
        table.add_column(column)
    for version, record in walked:
        table.add_row(version, *cells(record, runners).values())
    return table


def release_table(walked: Walked) -> Table:
    """Return faults on runners by release; a release that could not be tried says why below."""
    tried = [(name, record) for name, record in walked if not isinstance(record, str)]
    pairs = sorted(
        {
            (list(record["faults"]).index(judged["fault"]), judged["fault"], judged["runner"])
            for _, record in tried
            for judged in of_faults(record["answer"])
        }
    )
    table = Table(title="faults by release: ● present, ○ absent, ? undecided", box=None)
    table.add_column("fault")
    table.add_column("runner")
    for name, _ in walked:
        table.add_column(name, justify="center")
    for _, fault, runner in pairs:
        cells = []
        for _, record in walked:
            found = [] if isinstance(record, str) else of_faults(record["answer"])
            verdicts = [
                judged["verdict"]
                for judged in found
                if (judged["fault"], judged["runner"]) == (fault, runner)
            ]
            cells.append(MARKS[Verdict(verdicts[0])][0] if verdicts else "?")
        table.add_row(fault, runner, *cells)
    return table


def changes(walked: Walked) -> list[str]:
    """Say of each fault and runner where it appears and where it disappears, in order."""
    last: dict[tuple[str, str], tuple[str, str]] = {}
    lines: list[str] = []
    for name, record in walked:
        for judged in [] if isinstance(record, str) else of_faults(record["answer"]):
            key, verdict = (judged["fault"], judged["runner"]), judged["verdict"]
            if verdict == Verdict.UNDECIDED:
                continue
            before = last.get(key)
            if before is None and verdict == Verdict.PRESENT:
                lines.append(
                    f"{key[0]} on {key[1]}: present in {name}, the first release with a verdict"
                )
            elif before is not None and before[1] != verdict:
                how = "appears" if verdict == Verdict.PRESENT else "is gone"
                lines.append(f"{key[0]} on {key[1]}: {how} in {name}, after {before[0]}")
            last[key] = name, verdict
    return lines
