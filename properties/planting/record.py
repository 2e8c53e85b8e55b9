"""The record of planted faults: one outcome per run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paritybit.compat import StrEnum
from properties.support.places import ROOT

RECORD = ROOT / "reports/evidence/planted.json"


class End(StrEnum):
    """How a run with a fault ended."""

    FOUND = "found"
    MISSED = "missed"
    STOPPED = "engine stopped"
    UNDECIDED = "undecided"
    UNFIT = "does not apply"


@dataclass(frozen=True)
class FaultRun:
    """A run of `paritybit watch`, or of `paritybit explore` with the options `explore`.

    `name` is the fault's, empty for a run of the unmodified engine. `check`, `cause` and `forward`
    are those of the first finding that the unmodified engine does not have; for `explore`, `check`
    is what it prints. `keys` identify the findings of an unmodified engine. `seconds` and `cpu`
    are wall time and CPU time. `requests` are those left after shrinking.
    """

    engine: str
    status: End
    name: str = ""
    settings: str = ""
    explore: str | None = None
    environment: str = ""
    device: str = "cpu"
    seed: int = 0
    check: str | None = None
    cause: str | None = None
    forward: int | None = None
    forwards: int | None = None
    seconds: float | None = None
    cpu: float | None = None
    requests: int | None = None
    actions: str | None = None
    states: int | None = None
    keys: tuple[str, ...] = ()
    note: str | None = None

    @property
    def run(self) -> tuple[Any, ...]:
        """What identifies the run."""
        return (
            *(self.name, self.engine, self.settings, self.explore),
            *(self.environment, self.device, self.seed),
        )


def read(path: Path = RECORD) -> dict[tuple[Any, ...], FaultRun]:
    """Return the outcomes of a record by run; none if there is no record."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    outcomes = [
        FaultRun(**{**row, "status": End(row["status"]), "keys": tuple(row.get("keys", ()))})
        for row in rows
    ]
    return {outcome.run: outcome for outcome in outcomes}


def write(path: Path, outcomes: Iterable[FaultRun]) -> None:
    """Write a record, an outcome per line, without fields that have their default."""
    rows = [json.dumps(_stated(asdict(outcome)), ensure_ascii=False) for outcome in outcomes]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    partial.replace(path)


def _stated(row: Mapping[str, Any]) -> dict[str, Any]:
    usual = asdict(FaultRun(engine="", status=End.MISSED))
    return {
        name: value
        for name, value in row.items()
        if name in {"engine", "status"} or value != usual[name]
    }
