"""Compares the figures of a run with a committed record from the same kind of machine."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paritybit.harness.records.case import read_json

from paritybit.places import SOURCES

EVIDENCE = SOURCES / "reports" / "evidence"
"""The folder of committed records."""

FORMAT = "paritybit-bench"

OF_A_PRESET = (
    "steps_per_second",
    "step_in_products",
    "captures_per_second",
    "schedules_per_second",
)
"""The figures of a preset that are compared."""

KIND = ("device", "device_name")
"""The fields in which two machines of one kind agree."""

Data = Mapping[str, Any]


def committed(environment: Data, figures: Data) -> tuple[Path, Data] | None:
    """Return a committed bench record for the environment's kind of machine, and its file.

    If there are several, return the one with most of the figures.
    """
    paths = sorted(EVIDENCE.rglob("*bench*.json"))
    found = [
        (path, data)
        for path, data in zip(paths, map(read_json, paths), strict=True)
        if data["format"] == FORMAT
        and all(data["environment"][name] == environment[name] for name in KIND)
    ]
    return max(found, key=lambda one: len(list(against(figures, one[1]["figures"]))), default=None)


def against(now: Data, before: Data) -> Iterator[dict[str, Any]]:
    """Yield each figure that both records have: name, old value, new value, and their ratio."""
    older = dict(named(before))
    for name, value in named(now):
        old = older.get(name)
        if value and old:
            yield {"figure": name, "before": old, "now": value, "ratio": round(value / old, 3)}


def named(figures: Data) -> Iterator[tuple[str, float | None]]:
    """Yield the figures of a bench with their names. An older record has fewer."""
    for row in figures["lockstep"]:
        for name in OF_A_PRESET:
            yield f"{row['preset']} {name}", row.get(name)
    for row in figures.get("sharing", ()):
        if "processes" in row:
            yield f"{spread_of(row)} steps_per_second", row["steps_per_second"]
    for row in figures.get("beginnings", ()):
        yield beginning_of(row), row["begun_per_second"]
    for row in figures.get("commands", ()):
        yield f"{row['command']} cpu_seconds", row["cpu_seconds"]
    yield "share_of_captures", figures.get("captures", {}).get("share_of_captures")
    yield "comparison_over_copy", figures.get("bandwidth", {}).get("comparison_over_copy")


def spread_of(row: Data) -> str:
    """Describe the processes and GPUs of a rate."""
    gpus = f" on {row['gpus']} GPU{'s' * (row['gpus'] > 1)}" if row["gpus"] else ""
    under = " under MPS" if row["mps"] else ""
    return f"{row['processes']} process{'es' * (row['processes'] > 1)}{gpus}{under}"


def beginning_of(row: Data) -> str:
    """Describe the processes that initialise CUDA at the same time."""
    connections = f"{row['connections']} connection{'s' * (row['connections'] > 1)}"
    return f"{spread_of(row)} begin CUDA together, with {connections} each"
