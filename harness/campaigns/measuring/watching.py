"""Measures the cost of watching an engine on a CPU: its start, and forward passes per second."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paritybit.harness.records.case import read_json

from paritybit.places import IMPORT_FOLDER
from paritybit.watch.checks import CHECKS
from paritybit.watch.replays.relations import NAMES

SECONDS = 30
"""Seconds for which each run serves requests."""

SETTING = "decode graphs"
"""The setting of the engine."""

CHEAP = tuple(name for name in CHECKS if name not in NAMES)
"""Checks that run no further forward pass."""

UNWATCHED = 1_000_000
"""Check one in so many forward passes: none but the first of a run."""


def watching(engine: str) -> dict[str, Any]:
    """Return the seconds until the first verdict and the forward passes per second of an engine.

    `over_unwatched` is the time of a forward pass with all CHEAP checks over that without. Raises
    CalledProcessError if a run does not end with 0.
    """
    watched, unwatched = (served(engine, every) for every in (1, UNWATCHED))
    return {
        "engine": engine,
        "setting": SETTING,
        "seconds_until_verdict": round(watched["seconds"] - SECONDS, 1),
        "forwards_per_second": round(forwards(watched) / SECONDS, 1),
        "over_unwatched": round(forwards(unwatched) / forwards(watched), 2),
    }


def served(engine: str, every: int) -> dict[str, Any]:
    """Return the record of a run of `paritybit watch` that checks one in `every` forward passes."""
    with tempfile.TemporaryDirectory(prefix="paritybit-") as out:
        command = (
            *(sys.executable, "-m", "paritybit", "watch", "--engine", engine, "--device", "cpu"),
            *("--settings", SETTING, "--seconds", str(SECONDS), "--every", str(every)),
            *("--checks", ",".join(CHEAP), "--undecided", "warn", "--out", out),
        )
        subprocess.run(command, cwd=IMPORT_FOLDER, capture_output=True, check=True)
        record = min(Path(out).glob("*/watch.json"))  # "latest" links to the run.
        found: dict[str, Any] = read_json(record)
        return found


def forwards(record: dict[str, Any]) -> int:
    """Return the forward passes of a run, checked or not."""
    counts = record["counts"]
    return int(counts.get("forwards", 0)) + int(counts.get("skipped_forwards", 0))
