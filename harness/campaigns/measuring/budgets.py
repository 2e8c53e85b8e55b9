"""What speed is held to: the one table of bounds, for what bench prints, records and documents."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritybit.harness.campaigns.measuring.before import EVIDENCE
from paritybit.harness.campaigns.measuring.commands import RUNS
from paritybit.harness.records.case import read_json

Data = Mapping[str, Any]

COLUMNS = "figure", "bound", "now", "record", "verdict"
"""The heads of the table."""

COMMIT = 7
"""Letters of a commit."""

HUNTS = re.compile(r"(\d+) hunts")
"""The number of hunts in a record's message, which a shortened record keeps."""


@dataclass(frozen=True)
class Budget:
    """A figure and its bound: the most that it may be, or with `at_least` the least.

    `of` takes the figure from the record of a bench, or from the file of EVIDENCE that `record`
    names if bench does not measure it. None is no figure.
    """

    figure: str
    bound: float
    of: Callable[[Data], float | None] = lambda _: None
    record: str | None = None
    at_least: bool = False


def seconds_of_a_hunt(record: Data) -> float | None:
    """Return the CPU seconds of one hunt, the mean of those that a bench makes."""
    found = record["figures"].get("captures")
    return round(found["seconds"] / len(found["hunts"]), 3) if found else None


def over_other(command: str) -> Callable[[Data], float | None]:
    """Return what takes the CPU time of a command over that in another tree, if one was given."""

    def ratio(record: Data) -> float | None:
        rows = record["figures"].get("against", ())
        return next((row["ratio"] for row in rows if row["command"] == command), None)

    return ratio


def of_watching(name: str) -> Callable[[Data], float | None]:
    """Return what takes a figure of watching an engine, if one was measured."""

    def figure(record: Data) -> float | None:
        found = record["figures"].get("watching")
        return found[name] if found else None

    return figure


def seconds_for_each_hunt(record: Data) -> float:
    """Return the seconds of a whole run, clean trials included, over the number of its hunts."""
    found = HUNTS.search(record["message"])
    assert found is not None
    return round(float(record["seconds"]) / int(found[1]), 3)


def seconds_of_suite(record: Data) -> float:
    """Return the seconds of a test suite."""
    return float(record["figures"]["seconds"])


NARROWED, WHOLE = RUNS

BUDGETS = (
    Budget("CPU seconds of a hunt", 0.8, seconds_of_a_hunt),
    Budget(f"{NARROWED}: CPU time / ceb08e2", 0.5, over_other(NARROWED)),
    Budget(f"{WHOLE}: CPU time / ceb08e2", 0.6, over_other(WHOLE)),
    Budget("H200, MPS: seconds of a hunt", 0.15, seconds_for_each_hunt, "h200/regress.json"),
    Budget("H200, MPS: seconds of the suite", 60, seconds_of_suite, "h200/suite.json"),
    Budget("H200: seconds of the suite", 140, seconds_of_suite, "h200/suite-plain.json"),
    Budget("sglang on a CPU: seconds until a verdict", 30, of_watching("seconds_until_verdict")),
    Budget(
        "sglang on a CPU: forwards/s, cheap checks",
        150,
        of_watching("forwards_per_second"),
        at_least=True,
    ),
    Budget("sglang on a CPU: watched / unwatched time", 1.5, of_watching("over_unwatched")),
)


@dataclass(frozen=True)
class Held:
    """A figure as measured now and as recorded at a commit, each None if it is not known."""

    budget: Budget
    now: float | None
    recorded: float | None
    commit: str

    @property
    def verdict(self) -> str:
        """How the bound is kept now, or else by the record."""
        value = self.recorded if self.now is None else self.now
        if value is None:
            return "not measured here"
        kept = value >= self.budget.bound if self.budget.at_least else value <= self.budget.bound
        return "within" if kept else "over"

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """What stands in COLUMNS. A verdict that follows from a record names its commit."""
        sign = "≥" if self.budget.at_least else "≤"
        now, recorded = (
            "–" if value is None else f"{value:.3g}" for value in (self.now, self.recorded)
        )
        by_record = self.now is None and self.recorded is not None
        verdict = self.verdict + (f" at {self.commit}" if by_record else "")
        return self.budget.figure, f"{sign} {self.budget.bound:g}", now, recorded, verdict

    @property
    def data(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "figure": self.budget.figure,
            "bound": self.budget.bound,
            "now": self.now,
            "recorded": self.recorded,
            "verdict": self.verdict,
        }


def held(now: Data, before: Data | None) -> list[Held]:
    """Return each figure of a bench beside that of a committed record of one.

    A figure that bench does not measure is read from its own record, if that lies here.
    """
    rows = []
    for budget in BUDGETS:
        record = before if budget.record is None else recorded_in(EVIDENCE / budget.record)
        measured = budget.of({"figures": now}) if budget.record is None else None
        recorded = budget.of(record) if record is not None else None
        commit = record["environment"]["commit"][:COMMIT] if record is not None else ""
        rows.append(Held(budget, measured, recorded, commit))
    return rows


def recorded_in(path: Path) -> Data | None:
    """Return the data of a committed record; an installed package has none."""
    return read_json(path) if path.exists() else None
