"""The record of an engine's trial, and what its verdicts come to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paritybit.harness.checks.table import STATEMENTS
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.faults import FAULTS, Fault, Verdict, overall
from paritybit.harness.engines.legs import EAGERLY, OWN
from paritybit.harness.errors import CannotRunError, MalformedError, known
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.harness.machine.workers import Workers
from paritybit.harness.records.case import dump_json, is_of_format, of_format
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.record import environment
from paritybit.harness.records.schema import EngineCounterexample
from paritybit.harness.records.typed_json import to_json
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS

FORMAT = "paritybit-engine"
VERSION = 3

KEYS = frozenset({"environment", "command", "engine", "verdict", "message", "answer"})
"""What every record has, beside its format."""

Asked = Sequence[tuple[str, str | None]]
"""Faults asked about, each on one runner or, with None, on all."""


def faults_of(
    asked: Sequence[str], faults: Mapping[str, Fault] = FAULTS
) -> list[tuple[str, str | None]]:
    """Return the (fault, runner or None) asked about; none if none are named.

    Raises UnknownNameError for a name no build has, CannotRunError for a bug that is none of
    the `faults` that an engine's behaviour tells.
    """
    found: list[tuple[str, str | None]] = []
    told = [one for adapter in ADAPTERS.values() for one in adapter.faults if one not in BUGS]
    for named in asked:
        name, _, runner = named.partition("@")
        known("bug", name, [*BUGS, *told])
        if runner:
            known("runner", runner, RUNNERS)
        if name not in faults:
            raise CannotRunError(
                f"{name} cannot be tested on this engine; valid: {', '.join(faults)}"
            )
        found.append((name, runner or None))
    return found


def counted(answer: Mapping[str, Any], asked: Asked) -> list[dict[str, Any]]:
    """Return the findings that decide a trial.

    They are those that are not listed; where faults were asked about, not those that other
    fault classes explain. What no fault class explains always counts.
    """
    named = {fault for fault, _ in asked}
    return [
        finding
        for finding in answer["findings"]
        if not finding["listed"]
        and (not named or not finding["faults"] or named & set(finding["faults"]))
    ]


def judge(answer: Mapping[str, Any], asked: Asked, faults: Mapping[str, Fault] = FAULTS) -> Verdict:
    """Return what an answer comes to, of an engine whose behaviour tells some faults.

    Present if a finding counts; else undecided if anything that was asked could not be told;
    else absent, which is said of nothing that was not tried.
    """
    if counted(answer, asked):
        return Verdict.PRESENT
    open_runners = {entry["runner"] for entry in answer["undecided"]}
    verdicts = {
        overall(answer["faults"], open_runners, fault, runner)
        for fault, runner in asked or [(fault, None) for fault in faults]
    }
    tried = any(leg["replays"] for leg in answer["legs"])
    if not tried or answer["interrupted"] or (not asked and open_runners):
        return Verdict.UNDECIDED
    order = (Verdict.PRESENT, Verdict.UNDECIDED, Verdict.ABSENT)
    return next(verdict for verdict in order if verdict in verdicts)


WHERE_OWN = {OWN: " with its own kernels", EAGERLY: " in its own eager mode"}
"""What is said behind a leg's runner and model, by its arithmetic."""


def unasked(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return which properties were not asked of which legs, in groups of one reason."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for leg in answer["legs"]:
        by_reason: dict[str, list[str]] = {}
        for name, reason in leg["unasked"].items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            legs = groups.setdefault((reason, tuple(names)), [])
            own = WHERE_OWN.get(leg["arithmetic"], "")
            legs.append(f"{leg['runner']} {leg['preset']}{own}")
    return [
        {"reason": reason, "properties": list(names), "legs": legs}
        for (reason, names), legs in groups.items()
    ]


def make(
    name: str,
    device: str,
    command: str,
    asked: Asked,
    answer: dict[str, Any],
    counterexamples: Sequence[EngineCounterexample] = (),
    faults: Mapping[str, Fault] = FAULTS,
    workers: Workers | None = None,
) -> dict[str, Any]:
    """Return the record of one trial, in which no text names a path of this machine.

    `counterexamples` are its shrunk cases, played once more, `faults` what it can tell.
    """
    made = {
        "environment": to_json(environment(device, workers)),
        "command": command,
        "engine": name,
        "asked": [f"{fault}@{runner}" if runner else fault for fault, runner in asked],
        "verdict": judge(answer, asked, faults),
        "message": sentence(name, answer, asked, faults),
        "faults": {fault: found.statement for fault, found in faults.items()},
        "properties": dict(STATEMENTS),
        "unasked": unasked(answer),
        "counterexamples": to_json(counterexamples),
        "answer": answer,
    }
    return {key: without_paths(value) for key, value in made.items()}


def sentence(
    name: str, answer: Mapping[str, Any], asked: Asked, faults: Mapping[str, Fault] = FAULTS
) -> str:
    """Return the verdict in one sentence: what was found first, else what is open, else how much.

    What is open is said beside a finding too.
    """
    found = counted(answer, asked)
    open_legs = [f"{entry['leg']} ({entry['reason']})" for entry in answer["undecided"]]
    still = f"; undecided: {'; '.join(open_legs)}" if open_legs else ""
    if found:
        first = found[0]
        classes = f" ({', '.join(first['faults'])})" if first["faults"] else ""
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        where = f"{first['runner']} {first['preset']}"
        cause = f": {first['cause']}" if first["cause"] else ""
        said = f"{first['property']} on {where}{classes}: {first['message']}{cause}"
        return f"{name}: {said}{more}{still}"
    of_faults = ", ".join(f"{fault}@{on}" if on else fault for fault, on in asked)
    if judge(answer, asked, faults) is Verdict.UNDECIDED:
        cells = [
            f"{entry['fault']} on {entry['runner']} ({entry['message']})"
            for entry in answer["faults"]
            if entry["verdict"] == Verdict.UNDECIDED
        ]
        why = open_legs + cells + untold(answer, asked)
        return f"{name}: undecided: {'; '.join(why) or 'nothing was replayed'}"
    replays = sum(leg["replays"] for leg in answer["legs"])
    padded = sum(leg["padded"] for leg in answer["legs"])
    runners = ", ".join(dict.fromkeys(leg["runner"] for leg in answer["legs"]))
    what = f"no {of_faults}" if of_faults else "no difference found"
    return f"{name}: {what} in {replays} replays ({padded} padded) on {runners}{still}"


def untold(answer: Mapping[str, Any], asked: Asked) -> list[str]:
    """Return which faults that were asked about no leg told of, and what the engine lacks.

    The latter only where nothing was replayed.
    """
    told = {(entry["fault"], entry["runner"]) for entry in answer["faults"]}
    open_runners = {entry["runner"] for entry in answer["undecided"]}
    faults = [
        f"{fault} on {runner} (the runner was not tested)"
        for fault, runner in asked
        if runner and (fault, runner) not in told and runner not in open_runners
    ]
    if any(leg["replays"] for leg in answer["legs"]):
        return faults
    lacking = answer.get("lacking", ())
    return faults + [f"{entry['runner']} is not available: {entry['reason']}" for entry in lacking]


def write(record: dict[str, Any], path: Path) -> None:
    """Write the record of a trial. Raises CannotRunError where it cannot be written."""
    write_whole(path, dump_json({"format": FORMAT, "version": VERSION, **record}))


def trial_of(data: Any, name: str) -> dict[str, Any]:
    """Return the record of a file's JSON data. Raises MalformedError for any other data.

    What its parts hold is not looked at.
    """
    found = of_format(data, name, FORMAT, VERSION)
    lacking = sorted(KEYS - found.keys())
    if lacking:
        raise MalformedError(f"{name} is not a complete engine record: it lacks {lacking[0]}")
    return found


def is_trial(data: Any) -> bool:
    """Whether a file's JSON data says that it is the record of an engine's trial."""
    return is_of_format(data, FORMAT)
