"""The record of an engine's trial, and what its verdicts come to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.engines.faults import FAULTS, Verdict, overall
from harness.engines.legs import OWN
from harness.lockstep.config import CannotRunError, known
from harness.records.case import dump_json
from harness.records.record import environment
from harness.records.typed_json import to_json
from subjects.bugs.catalogue import BUGS
from subjects.runners import RUNNERS

FORMAT = "paritybit-engine"
VERSION = 2


def faults_of(asked: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the (fault, runner or None) asked about; all faults if none are named.

    Raises UnknownNameError for a name no build has, CannotRunError for a bug that an
    engine's behaviour does not tell.
    """
    found: list[tuple[str, str | None]] = []
    for named in asked:
        name, _, runner = named.partition("@")
        known("bug", name, BUGS)
        if runner:
            known("runner", runner, RUNNERS)
        if name not in FAULTS:
            raise CannotRunError(
                f"the trial of an engine cannot tell {name}; it tells {', '.join(FAULTS)}"
            )
        found.append((name, runner or None))
    return found or [(name, None) for name in FAULTS]


def judge(answer: dict[str, Any], asked: Sequence[tuple[str, str | None]]) -> Verdict:
    """Return what an answer says of the faults asked about: one that is present decides."""
    verdicts = {overall(answer["faults"], fault, runner) for fault, runner in asked}
    order = (Verdict.PRESENT, Verdict.UNDECIDED, Verdict.ABSENT)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.UNDECIDED)


def unasked(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return which properties were not asked of which legs, in groups of one reason."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for leg in answer["legs"]:
        by_reason: dict[str, list[str]] = {}
        for name, reason in leg["unasked"].items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            legs = groups.setdefault((reason, tuple(names)), [])
            own = " with its own kernels" if leg["arithmetic"] == OWN else ""
            legs.append(f"{leg['runner']} {leg['preset']}{own}")
    return [
        {"reason": reason, "properties": list(names), "legs": legs}
        for (reason, names), legs in groups.items()
    ]


def make(
    name: str,
    device: str,
    command: str,
    asked: Sequence[tuple[str, str | None]],
    answer: dict[str, Any],
) -> dict[str, Any]:
    """Return the record of one trial."""
    return {
        "environment": to_json(environment(device)),
        "command": command,
        "engine": name,
        "asked": [f"{fault}@{runner}" if runner else fault for fault, runner in asked],
        "verdict": judge(answer, asked),
        "faults": {name: fault.statement for name, fault in FAULTS.items()},
        "unasked": unasked(answer),
        "answer": answer,
    }


def write(record: dict[str, Any], path: Path) -> None:
    """Write the record of a trial."""
    path.write_text(dump_json({"format": FORMAT, "version": VERSION, **record}))
