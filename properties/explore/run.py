"""Plant the faults of the table, one at a time, and see what `paritybit explore` says of each.

A script: `python -m properties.explore.run --sources FOLDER`. FOLDER has a folder per release, such
as `sglang-0.5.23`. Releases without a fault are explored first. Exits with 0 if they are clean and
all faults are found.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paritybit.compat import tomllib
from properties.sanitizer.planted import faults
from properties.sanitizer.planted.faults import Fault, read
from properties.sanitizer.planted.plant import plant
from properties.support.places import ROOT, say

TABLE = Path(__file__).with_name("faults.toml")
RECORD = ROOT / "reports/evidence/planted-explore.json"
SIZES = re.compile(r"(\d+) states, (\d+) actions tried in [\d.]+ s")
SECONDS = "1200"

PAGED = ("--page-size", "2", "--window", "3")
PAIRED = ("--keys", "2")
TIGHT = ("--slots", "14")
WIDE = ("--window", "3")
"""vLLM's window counts the token itself, so with 2 a prefix hit needs a single block."""

NARROW = {"vllm": WIDE, "sglang": ()}
"""The bound of pages of one token, by engine."""

CONTROLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vllm-0.33.0", WIDE),
    ("vllm-0.33.0", PAGED),
    ("sglang-0.5.23", ()),
    ("sglang-0.5.23", TIGHT),
    ("sglang-0.5.23", PAGED),
    ("sglang-0.5.23", (*PAGED, *PAIRED)),
)
"""Releases that are explored without a fault, and the bounds."""


def explored(engine: Path, words: Sequence[str], out: Path, fault: Fault | None) -> dict[str, Any]:
    """Return what `paritybit explore` says of an engine's folder."""
    command = ["explore", "--engine", str(engine), *words, "--seconds", SECONDS, "--out", str(out)]
    ended = subprocess.run(
        [sys.executable, "-m", "paritybit", *command],
        cwd=ROOT,
        env={**os.environ, **(fault.environment if fault is not None else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    lines, sizes = ended.stdout.splitlines(), SIZES.search(ended.stdout)
    cases = sorted(out.glob("*/cases/explore.json"))
    case = json.loads(cases[-1].read_text(encoding="utf-8")) if cases else {}
    return {
        "options": " ".join(words),
        "exit code": ended.returncode,
        "states": int(sizes[1]) if sizes else 0,
        "actions": " / ".join(case.get("actions", ())),
        "text": case.get("text") or (lines or ended.stderr.splitlines())[-1],
    }


def planted() -> list[tuple[str, tuple[str, ...], Fault]]:
    """Return the faults: for each, the release and the options."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    chosen = list(read(TABLE))
    for name, names in table["borrowed"].items():
        listed = {fault.name: fault for fault in read(faults.TABLE.with_name(name))}
        chosen += [listed[one] for one in names]
    return [
        (
            f"{fault.engine}-{fault.release}",
            (PAGED if {"page", "small-page"} & set(fault.needs) else NARROW[fault.engine])
            + (PAIRED if "eagle" in fault.needs else ())
            + (TIGHT if fault.name in table["tight"] else ()),
            fault,
        )
        for fault in chosen
    ]


def main() -> int:
    """Plant all faults and write the record; return the exit code."""
    parser = argparse.ArgumentParser(description="Plant faults in engines and explore them.")
    parser.add_argument("--sources", type=Path, required=True, help="Folder of unpacked releases")
    parser.add_argument("--only", nargs="+", help="Names whose entries in the record are renewed")
    asked = parser.parse_args()
    trials: list[tuple[str, str, tuple[str, ...], Fault | None]] = [
        *((" ".join((name, *words)), name, words, None) for name, words in CONTROLS),
        *((fault.name, release, words, fault) for release, words, fault in planted()),
    ]
    found = json.loads(RECORD.read_text(encoding="utf-8")) if asked.only else {}
    for name, release, words, fault in trials:
        if asked.only is None or name in asked.only:
            with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
                engine = Path(scratch) / release
                plant(fault, (asked.sources / release).resolve(), engine)
                found[name] = {"release": release}
                found[name] |= explored(engine, words, Path(scratch) / "out", fault)
            say(f"{name}: exit code {found[name]['exit code']}: {found[name]['text']}")
            found = {one: found[one] for one, *_ in trials if one in found}
            RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    expected = [0] * len(CONTROLS) + [1] * len(planted())
    return 0 if [one["exit code"] for one in found.values()] == expected else 1


if __name__ == "__main__":
    sys.exit(main())
