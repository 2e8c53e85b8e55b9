"""Plant the faults of the table, one at a time, and see what `paritybit explore` says of each.

A script: `python -m properties.explore.run --source FOLDER`. In FOLDER vLLM's wheel is unpacked.
The release is first explored without a fault. Exits with 0 if all faults are found.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from properties.planted.run import say
from properties.sanitizer.planted.faults import Fault, read
from properties.sanitizer.planted.plant import plant
from properties.support.places import ROOT

TABLE = Path(__file__).with_name("faults.toml")
RECORD = ROOT / "reports/evidence/planted-explore.json"
SIZES = re.compile(r"(\d+) states, (\d+) actions tried in [\d.]+ s \((\d+) states per second\)")


def explored(engine: Path, page: int, out: Path) -> dict[str, Any]:
    """Return what `paritybit explore` says of an engine's folder."""
    words = ["--engine", str(engine), "--page-size", str(page), "--out", str(out)]
    ended = subprocess.run(
        [sys.executable, "-m", "paritybit", "explore", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines, sizes = ended.stdout.splitlines(), SIZES.search(ended.stdout)
    cases = sorted(out.glob("*/cases/explore.json"))
    case = json.loads(cases[-1].read_text(encoding="utf-8")) if cases else {}
    return {
        "exit code": ended.returncode,
        "page size": page,
        "states": int(sizes[1]) if sizes else 0,
        "actions": case.get("actions"),
        "text": case.get("text") or (lines or [ended.stderr])[-1],
    }


def main() -> int:
    """Plant all faults and write the record; return the exit code."""
    parser = argparse.ArgumentParser(description="Plant faults in vLLM and explore it.")
    parser.add_argument("--source", type=Path, required=True, help="Folder of an unpacked release")
    asked = parser.parse_args()
    faults: list[Fault | None] = [None, *read(TABLE)]
    found: dict[str, Any] = {}
    for fault in faults:
        name, page = "control", 1
        if fault is not None:
            name, page = fault.name, 2 if "page" in fault.needs else 1
        with tempfile.TemporaryDirectory(prefix="planted-", dir=asked.source.parent) as scratch:
            engine = Path(scratch) / "engine"
            plant(fault, asked.source, engine)
            found[name] = explored(engine, page, Path(scratch) / "out")
        say(f"{name}: exit code {found[name]['exit code']}: {found[name]['text']}")
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if [one["exit code"] for one in found.values()] == [0] + [1] * len(faults[1:]) else 1


if __name__ == "__main__":
    sys.exit(main())
