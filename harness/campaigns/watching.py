"""Measures the cost of watching an engine on a CPU: its start, and forward passes per second."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paritybit.places import IMPORT_FOLDER
from paritybit.watch.checks import CHECKS
from paritybit.watch.replays.relations import NAMES

SECONDS = 40
"""Seconds of each run, with the start of the engine."""

SERVED = re.compile(r"^\d+ forwards in ([\d.]+) s$", re.MULTILINE)
"""What the process of an engine prints at its end."""

SETTING = "decode graphs"
"""The setting of the engine."""

CHEAP = tuple(name for name in CHECKS if name not in NAMES)
"""Checks that run no further forward pass."""

UNWATCHED = 1_000_000
"""Check one in so many forward passes: none but the first of a run."""


def watching(engine: str) -> dict[str, Any]:
    """Return what watching an engine adds to its start, and its forward passes per second.

    `over_unwatched` is the time of a forward pass with all CHEAP checks over that without. Raises
    CalledProcessError if a run does not end with 0.
    """
    watched, unwatched = (served(engine, every) for every in (1, UNWATCHED))
    return {
        "engine": engine,
        "setting": SETTING,
        "seconds_added_to_start": round(start(watched) - start(unwatched), 1),
        "forwards_per_second": round(rate(watched), 1),
        "over_unwatched": round(rate(unwatched) / rate(watched), 2),
    }


def served(engine: str, every: int) -> dict[str, Any]:
    """Return the record of a run of `paritybit watch` that checks one in `every` forward passes.

    `served` has the seconds without the start of the engine.
    """
    with tempfile.TemporaryDirectory(prefix="paritybit-") as out:
        command = (
            *(sys.executable, "-m", "paritybit", "watch", "--engine", engine, "--device", "cpu"),
            *("--settings", SETTING, "--seconds", str(SECONDS), "--every", str(every)),
            *("--checks", ",".join(CHEAP), "--undecided", "warn", "--out", out),
        )
        subprocess.run(command, cwd=IMPORT_FOLDER, capture_output=True, check=True)
        record = min(Path(out).glob("*/watch.json"))  # "latest" links to the run.
        (log,) = record.parent.glob("legs/*/engine.log")
        (seconds,) = SERVED.findall(log.read_text(encoding="utf-8", errors="replace"))
        return {**json.loads(record.read_text()), "served": float(seconds)}


def start(record: dict[str, Any]) -> float:
    """Return the seconds of a run before its first forward pass and after its last."""
    return float(record["seconds"]) - float(record["served"])


def rate(record: dict[str, Any]) -> float:
    """Return the forward passes per second of a run, checked or not."""
    counts = record["counts"]
    number = counts.get("forwards", 0) + counts.get("skipped_forwards", 0)
    return float(number) / float(record["served"])
