"""What became of planted faults: the record of a run, and the table that is made from it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paritybit.compat import StrEnum, tomllib
from properties.sanitizer.planted.faults import Fault

FOLDER = Path(__file__).parent
"""Has, for each engine, a file that says why faults are missed, by name."""


DEVICES = {"cpu": "a CPU", "cuda": "a GPU"}
"""Where engines are watched, as the table says it."""


class Status(StrEnum):
    """What the sanitizer said of a fault."""

    FOUND = "found"
    MISSED = "missed"
    STOPPED = "engine stopped"
    UNDECIDED = "undecided"
    UNFIT = "does not apply"


@dataclass(frozen=True)
class Outcome:
    """A fault, or a control run without one, and what `paritybit watch` said of it.

    `check`, `forward`, `leg`, `cause` and `text` are those of the first finding that the control
    run does not have. `keys` are the keys of all findings. `seconds` is how long the run took.
    `note` says what else there is to say, such as why the engine stopped.
    """

    name: str
    release: str
    leg: str
    status: Status
    seconds: float
    check: str | None = None
    forward: int | None = None
    cause: str | None = None
    text: str | None = None
    forwards: int = 0
    keys: tuple[str, ...] = ()
    note: str | None = None


def judge(
    fault: Fault, watched: Mapping[str, Any], leg: str, seconds: float, control: Iterable[str]
) -> Outcome:
    """Return the outcome that a record of `paritybit watch` shows.

    A finding whose key the control run has too is not the fault's.
    """
    findings = watched.get("findings", [])
    usual = set(control)
    new = [finding for finding in findings if finding["key"] not in usual]
    broken = [
        ending["ending"] for ending in watched.get("legs", []) if "failed" in ending["ending"]
    ]
    if new:
        status = Status.FOUND
    elif broken:
        status = Status.STOPPED
    elif watched.get("undecided"):
        status = Status.UNDECIDED
    else:
        status = Status.MISSED
    first = new[0] if new else {}
    return Outcome(
        name=fault.name,
        release=fault.release,
        leg=first.get("leg") or leg,
        status=status,
        seconds=round(seconds, 1),
        check=first.get("check"),
        forward=first.get("forward"),
        cause=(first.get("cause") or {}).get("what"),
        text=first.get("text"),
        forwards=watched.get("counts", {}).get("forwards", 0),
        keys=tuple(finding["key"] for finding in findings),
        note="; ".join([*broken, *watched.get("undecided", [])])[:300] or None,
    )


def read(path: Path) -> dict[str, Outcome]:
    """Return the outcomes of a record by name; none if there is no record yet."""
    if not path.exists():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))
    found = [
        Outcome(**{**entry, "status": Status(entry["status"]), "keys": tuple(entry["keys"])})
        for entry in entries
    ]
    return {outcome.name: outcome for outcome in found}


def write(
    path: Path, outcomes: Mapping[str, Outcome], faults: Sequence[Fault], device: str = "cpu"
) -> None:
    """Write a record, and next to it the table, with control runs first, then the faults."""
    order = {fault.name: number for number, fault in enumerate(faults)}
    ordered = sorted(outcomes.values(), key=lambda one: (order.get(one.name, -1), one.name))
    text = json.dumps([asdict(outcome) for outcome in ordered], indent=0, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
    why = reasons(
        FOLDER / f"missed{path.stem.removeprefix('planted').removeprefix('-sanitizer')}.toml"
    )
    path.with_suffix(".md").write_text(table(ordered, faults, why, device), encoding="utf-8")


def reasons(path: Path) -> dict[str, str]:
    """Return why faults are missed, by name."""
    if not path.exists():
        return {}
    found: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def table(
    outcomes: Sequence[Outcome],
    faults: Sequence[Fault],
    why: Mapping[str, str],
    device: str = "cpu",
) -> str:
    """Return the table of faults as Markdown. `why` says why faults are missed."""
    (engine,) = {fault.engine for fault in faults}
    by_name = {outcome.name: outcome for outcome in outcomes}
    tried = [fault for fault in faults if fault.name in by_name]
    found = [fault for fault in tried if by_name[fault.name].status is Status.FOUND]
    where = DEVICES[device]
    lines = [
        f"# Faults planted in {engine}, and what the sanitizer says",
        "",
        f"{len(found)} of {len(tried)} planted faults are found"
        + (f" ({100 * len(found) / len(tried):.1f} %)." if tried else "."),
        "Made by `python -m properties.sanitizer.planted.run`, which plants one fault at a time"
        f" in a copy of the engine's folder and runs `paritybit watch --engine` on it, on {where}.",
        "A finding that the control run of the same leg has too does not count.",
        "",
        *([why["about"], ""] if "about" in why else []),
        "## Control runs, without a fault",
        "",
        "| release and leg | forwards | findings |",
        "|---|---|---|",
        *(
            f"| {outcome.name} | {outcome.forwards} | {ended(outcome)} |"
            for outcome in outcomes
            if outcome.name not in {fault.name for fault in faults}
        ),
        "",
        "## By class",
        "",
        "| class | found | of |",
        "|---|---|---|",
        *class_lines(tried, found),
        "",
        "## Missed",
        "",
        *(
            f"- **{fault.name}** ({by_name[fault.name].status}): {fault.why}"
            f" {why.get(fault.name, 'Not analysed yet.')}"
            for fault in tried
            if fault not in found
        ),
        "",
        "## All faults",
        "",
        "| fault | class | release | leg | result | check | forward | s | the law it breaks |",
        "|---|---|---|---|---|---|---|---|---|",
        *(fault_line(fault, by_name[fault.name]) for fault in tried),
        "",
    ]
    return "\n".join(lines)


def ended(outcome: Outcome) -> str:
    """Return the findings of a control run, none, or how else it ended."""
    none = "none" if outcome.status is Status.MISSED else str(outcome.status)
    return cell(", ".join(outcome.keys) or none)


def class_lines(tried: Sequence[Fault], found: Sequence[Fault]) -> list[str]:
    """Return a row per class, in the order of the table of faults."""
    hits = Counter(fault.family for fault in found)
    return [
        f"| {family} | {hits[family]} | {number} |"
        for family, number in Counter(fault.family for fault in tried).items()
    ]


def fault_line(fault: Fault, outcome: Outcome) -> str:
    """Return the row of a fault."""
    shown = (
        fault.name,
        fault.family,
        fault.release,
        outcome.leg,
        outcome.status,
        outcome.check or "",
        "" if outcome.forward is None else str(outcome.forward),
        f"{outcome.seconds:.0f}",
        fault.why + (f" ({fault.thread})" if fault.thread else ""),
    )
    return f"| {' | '.join(map(cell, shown))} |"


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())
