"""The record of public fixes that are undone, and the table that is made from it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from properties.sanitizer.planted.faults import Fault, read
from properties.sanitizer.planted.outcome import Outcome, Status, cell, reasons
from properties.support.places import ROOT

TABLE = Path(__file__).with_name("public.toml")
RECORD = ROOT / "reports/evidence/public-fixes.json"
REASONS = Path(__file__).with_name("public-missed.toml")


@dataclass(frozen=True)
class Run:
    """What watch said of a fault at a seed.

    `cpu` are seconds of CPU time. The case of a fault that is found does not show the finding in
    the release without the fault. `requests` are those of the case after shrinking.
    """

    name: str
    seed: int
    leg: str
    status: Status
    seconds: float
    cpu: float
    check: str | None = None
    cause: str | None = None
    forward: int | None = None
    forwards: int = 0
    key: str | None = None
    case: str | None = None
    requests: int | None = None
    note: str | None = None

    @classmethod
    def of(
        cls, outcome: Outcome, seed: int, cpu: float, key: str | None, case: str | None
    ) -> "Run":
        """Return the run of an outcome. The key and the case are those of its first finding."""
        names = {one.name for one in fields(cls)}
        said = {name: value for name, value in vars(outcome).items() if name in names}
        return cls(**said, seed=seed, cpu=cpu, key=key, case=case)


def read_runs(path: Path = RECORD) -> dict[tuple[str, int], Run]:
    """Return the runs of a record by name and seed; none if there is no record yet."""
    if not path.exists():
        return {}
    runs = (
        Run(**{**entry, "status": Status(entry["status"])})
        for entry in json.loads(path.read_text(encoding="utf-8"))
    )
    return {(run.name, run.seed): run for run in runs}


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Write a record and, next to it, its table. Runs keep the order of the table of faults."""
    order = {fault.name: place for place, fault in enumerate(read(TABLE))}
    kept = sorted(runs, key=lambda run: (order.get(run.name, len(order)), run.seed))
    lines = ",\n".join(
        json.dumps({name: value for name, value in asdict(run).items() if value is not None})
        for run in kept
    )
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    path.with_suffix(".md").write_text(table(kept), encoding="utf-8")


def table(runs: Sequence[Run]) -> str:
    """Return the table of public fixes as Markdown."""
    faults = read(TABLE)
    of = {fault.name: {run.seed: run for run in runs if run.name == fault.name} for fault in faults}
    tried = [fault for fault in faults if of[fault.name]]
    found = [fault for fault in tried if first(of[fault.name])]
    small = [
        run.requests
        for fault in found
        for run in of[fault.name].values()
        if run.requests is not None
    ]
    why = reasons(REASONS)
    lines = [
        "# Public fixes of sglang undone, and what watch finds",
        "",
        f"{len(found)} of {len(tried)} faults are found at a seed at least."
        f" {sum(left <= 5 for left in small)} of {len(small)} shrunk scripts have at most 5"
        " requests.",
        "Made by `python -m properties.sanitizer.planted.public`. Each fault undoes one merged pull"
        " request in a copy of a release that has it.",
        "",
        *([why["about"], ""] if "about" in why else []),
        "| fix | class | release | seed 0 | seed 1 | seed 2 | check | cause | requests left |",
        "|---|---|---|---|---|---|---|---|---|",
        *(line(fault, of[fault.name]) for fault in tried),
        "",
        "`found (20)`: found after 20 seconds of CPU time.",
        "",
        "## Missed",
        "",
        *(
            f"- **{fault.name}** ({fault.thread}): {fault.why}"
            f" {why.get(fault.name, 'Not analysed yet.')}"
            for fault in tried
            if fault not in found or fault.name in why
        ),
        "",
    ]
    return "\n".join(lines)


def first(runs: Mapping[int, Run]) -> Run | None:
    """Return the first run that found the fault."""
    return next((run for _, run in sorted(runs.items()) if run.status is Status.FOUND), None)


def line(fault: Fault, runs: Mapping[int, Run]) -> str:
    """Return the row of a fault."""
    seeds = [
        f"{runs[seed].status} ({runs[seed].cpu:.0f})" if seed in runs else "" for seed in range(3)
    ]
    best = first(runs)
    left = [run.requests for run in runs.values() if run.requests is not None]
    shown = (
        f"{fault.thread}: {fault.name}",
        fault.family,
        fault.release,
        *seeds,
        best.check or "" if best else "",
        best.cause or "not known" if best else "",
        str(left[0]) if left else "",
    )
    return f"| {' | '.join(map(cell, shown))} |"
