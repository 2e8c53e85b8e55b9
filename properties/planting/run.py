"""Plant faults in copies of engines, one at a time, and record what finds each.

`python -m properties.planting.run TABLE...` runs `paritybit watch` on each fault of the tables, and
`paritybit explore` where the table names options for it. Faults of releases that `paritybit engine`
has not downloaded are left out. The unmodified engine is run first in each setting, and its
findings count for no fault. Runs that the record has are not repeated, and faults that were found
fastest before come first. Exits with 0 if each fault is found that the table calls found, and no
harmless change alters how an engine ends.
"""

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, current_thread
from typing import Any

from paritybit.engines import fetch
from properties.planting.faults import FOLDER, TABLES, Fault, plant, read
from properties.planting.record import RECORD, End, FaultRun, write
from properties.planting.record import read as read_record
from properties.support.places import ROOT, say

COMMANDS = ("watch", "explore")

STATES = re.compile(r"(\d+) states, \d+ actions tried")


@dataclass
class Trials:
    """Runs engines with and without faults. `out` keeps the folder and the log of each run.

    - `commands`: those to run, of `watch` and `explore`.
    - `limit`, `ends`: seconds of a run, and the time on the clock at which the last one ends.
    - `cores`: cores of each run, 0 for all.
    - `record`: the file to which each outcome is written at once.
    """

    sources: Path
    out: Path
    device: str
    seed: int
    seconds: float
    known: dict[tuple[Any, ...], FaultRun]
    record: Path
    commands: Sequence[str] = COMMANDS
    limit: float = 1500.0
    ends: float = math.inf
    cores: int = 0
    findings: Path | None = None
    lock: Lock = field(default_factory=Lock)
    controls: dict[tuple[Any, ...], Lock] = field(default_factory=lambda: defaultdict(Lock))

    def tried(self, fault: Fault) -> Iterator[tuple[Fault, FaultRun]]:
        """Yield the outcomes of a fault, after those of the unmodified engine that are new."""
        ways: list[str | None] = [None] if fault.watched and "watch" in self.commands else []
        ways += [fault.explore] if fault.explore is not None and "explore" in self.commands else []
        for explore in ways:
            control_of = fault.source, fault.served, explore, tuple(fault.environment.items())
            with self.controls[control_of]:
                control = self.outcome(fault, explore, planted=False, usual=None)
            if control is not None:
                yield fault, control
                outcome = self.outcome(fault, explore, planted=True, usual=control)
                yield from [] if outcome is None else [(fault, outcome)]

    def outcome(
        self, fault: Fault, explore: str | None, *, planted: bool, usual: FaultRun | None
    ) -> FaultRun | None:
        """Return the outcome of a run, from the record if it has it, or None if time is up."""
        facts: dict[str, Any] = {
            "name": fault.name if planted else "",
            "engine": "+".join(filter(None, (fault.engine, fault.beside))),
            "settings": "" if explore is not None else fault.served,
            "explore": explore,
            "environment": " ".join(f"{key}={one}" for key, one in fault.environment.items()),
            "device": self.device,
            "seed": self.seed,
        }
        run = FaultRun(status=End.UNDECIDED, **facts).run
        if run in self.known:
            return self.known[run]
        if time.monotonic() >= self.ends:
            return None
        engine = self.out / "engines" / current_thread().name / fault.source
        shutil.rmtree(engine, ignore_errors=True)
        try:
            plant(fault if planted else None, self.sources / engine.name, engine)
        except ValueError as error:
            return FaultRun(status=End.UNFIT, note=str(error), **facts)
        begun = time.monotonic()
        judged = self.explored if explore is not None else self.watched
        found = judged(fault, engine, facts["name"] or "unmodified", usual)
        seconds = round(time.monotonic() - begun, 1)
        outcome = FaultRun(**facts, **found, seconds=seconds)
        if outcome.status is not End.FOUND and time.monotonic() >= self.ends:
            return None
        with self.lock:
            self.known[run] = outcome
            write(self.record, list(self.known.values()))
        return outcome

    def watched(
        self, fault: Fault, engine: Path, name: str, usual: FaultRun | None
    ) -> dict[str, Any]:
        """Watch an engine, and return how that ended."""
        out = self.folder(fault, name)
        words = ["watch", "--engine", str(engine), "--out", str(out), "--device", self.device]
        words += ["--seed", str(self.seed), "--seconds", f"{self.seconds:g}"]
        words += ["--settings", fault.settings] if fault.settings else []
        words += fault.ranks.split()
        words += ["--known", str(self.findings)] if self.findings is not None else []
        # A run that ends with its first finding would end with one of the release's own.
        words += ["--keep-going"] if usual is None or usual.keys else []
        self.run(fault, out, words)
        records = sorted(out.glob("**/watch.json"))
        if not records:
            return {"status": End.UNDECIDED, "note": f"no record; see {out.name}.log"}
        record = json.loads(records[-1].read_text(encoding="utf-8"))
        return judge(record, usual)

    def explored(
        self, fault: Fault, engine: Path, name: str, usual: FaultRun | None
    ) -> dict[str, Any]:
        """Explore an engine's schedules, and return how that ended."""
        out = self.folder(fault, f"{name}-explore")
        words = ["explore", "--engine", str(engine), "--out", str(out), "--seconds", "1200"]
        code, text = self.run(fault, out, [*words, *(fault.explore or "").split()])
        cases = sorted(out.glob("*/cases/explore.json"))
        case = json.loads(cases[-1].read_text(encoding="utf-8")) if cases else {}
        sizes = STATES.search(text)
        ended: Mapping[int | None, End] = {0: End.MISSED, 1: End.FOUND}
        return {
            "status": ended.get(code, End.UNDECIDED),
            "check": case.get("text") or (text.splitlines() or [""])[-1],
            "actions": " / ".join(case.get("actions", ())) or None,
            "states": int(sizes[1]) if sizes else None,
        }

    def folder(self, fault: Fault, name: str) -> Path:
        """Return where a run leaves its files."""
        return self.out / re.sub(r"[^\w.+-]+", "-", f"{name}-{fault.source}-{fault.served}")

    def run(self, fault: Fault, out: Path, words: Sequence[str]) -> tuple[int | None, str]:
        """Run a command of paritybit; return its exit code, None if it hangs, and its output."""
        log = out.with_name(f"{out.name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "paritybit", *words]
        own = dict(fault.environment)
        if self.cores:
            first = int(current_thread().name.rpartition("_")[2]) * self.cores
            mine = sorted(os.sched_getaffinity(0))[first : first + self.cores]
            command = ["taskset", "-c", ",".join(map(str, mine)), *command]
            own |= {"OMP_NUM_THREADS": str(self.cores), "MALLOC_ARENA_MAX": "1"}
        with log.open("wb") as file:
            run = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = waited(run, min(self.limit, self.ends - time.monotonic()))
        return code, log.read_text(encoding="utf-8", errors="replace")


def waited(run: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """Return the exit code of a process, or None after ending its group, as time was up."""
    for patience, how in ((max(1.0, seconds), signal.SIGTERM), (20.0, signal.SIGKILL)):
        try:
            code = run.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, how)
        else:
            return code if how is signal.SIGTERM else None
    run.wait()
    return None


def judge(record: Mapping[str, Any], usual: FaultRun | None) -> dict[str, Any]:
    """Return what a record of `paritybit watch` shows that the unmodified engine does not.

    Without `usual`, the record is that of the unmodified engine. A finding that does not appear
    once a change is undone is new, even if the unmodified engine has another one like it.
    """
    findings = record.get("findings", [])
    known = () if usual is None else usual.keys
    new = [one for one in findings if one["key"] not in known or one.get("changes")]
    endings = [config["ending"] for config in record.get("configs", [])]
    broken = [ending for ending in endings if "failed" in ending]
    undecided = list(record.get("undecided", []))
    first = new[0] if new else {}
    status = End.FOUND if new else End.STOPPED if broken else End.MISSED
    if status is End.MISSED and undecided:
        status = End.UNDECIDED
    return {
        "status": status,
        "check": first.get("check"),
        "cause": (first.get("cause") or {}).get("what"),
        "forward": first.get("forward"),
        "forwards": record.get("counts", {}).get("forwards"),
        "keys": tuple(finding["key"] for finding in findings) if usual is None else (),
        "note": None if new else "; ".join([*broken, *undecided])[:300] or None,
    }


def differs(fault: Fault, outcome: FaultRun, control: FaultRun) -> bool:
    """Whether a run ended in another way than its table says."""
    if outcome.explore is not None or fault.found is not None:
        return outcome.status is not End.FOUND
    if fault.harmless:
        unharmed = End.MISSED if control.status is End.FOUND else control.status
        return outcome.status is not unharmed
    return False


def chosen(tables: Sequence[Path], only: str | None) -> list[Fault]:
    """Return the faults of tables, or those named. Raises SystemExit for an unknown name."""
    faults = [fault for table in tables for fault in read(table)]
    if only is None:
        return faults
    names = only.split(",")
    if unknown := set(names) - {fault.name for fault in faults}:
        raise SystemExit(f"unknown fault: {', '.join(sorted(unknown))}")
    return [fault for fault in faults if fault.name in names]


def fastest_first(faults: Sequence[Fault], record: Mapping[Any, FaultRun]) -> list[Fault]:
    """Return faults in the order of the seconds in which a record shows them found."""
    seconds = {
        (one.name, one.engine): one.seconds or math.inf
        for one in record.values()
        if one.status is End.FOUND and one.device == "cpu"
    }
    return sorted(faults, key=lambda fault: seconds.get((fault.name, fault.engine), math.inf))


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Plant faults in engines; see what finds each.")
    names = [table.stem for table in TABLES]
    parser.add_argument("tables", nargs="+", choices=names, metavar="TABLE", help=", ".join(names))
    parser.add_argument("--only", metavar="NAME,...", help="Plant these faults")
    parser.add_argument("--record", type=Path, default=Path("paritybit-out/planted.json"))
    parser.add_argument("--known", type=Path, help="Known findings, as of paritybit watch")
    parser.add_argument("--out", type=Path, help="Folder of the runs (a new one)")
    parser.add_argument("--command", choices=COMMANDS, help="Run only this command")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="Of each watch run (60)")
    parser.add_argument("--jobs", type=int, default=1, help="Engines that run at a time (1)")
    parser.add_argument("--cores", type=int, default=0, help="Of each of them (all)")
    parser.add_argument("--limit", type=float, default=1500.0, help="Seconds of a run (1500)")
    parser.add_argument("--budget", type=float, default=math.inf, help="Seconds of all (endless)")
    return parser.parse_args()


def main() -> int:
    """Plant the faults asked for, and return the exit code."""
    asked = options()
    faults = chosen([FOLDER / f"{name}.toml" for name in asked.tables], asked.only)
    here = [fault for fault in faults if (fetch.folder() / fault.source).is_dir()]
    faults = fastest_first(here, read_record(RECORD))
    known = read_record(asked.record)
    out = (asked.out or Path(tempfile.mkdtemp(prefix="planted-"))).resolve()
    commands = COMMANDS if asked.command is None else (asked.command,)
    trials = Trials(
        *(fetch.folder(), out, asked.device, asked.seed, asked.seconds, known),
        *(asked.record, commands, asked.limit, time.monotonic() + asked.budget, asked.cores),
        findings=None if asked.known is None else asked.known.resolve(),
    )
    wrong: list[str] = []
    with ThreadPoolExecutor(asked.jobs, "planted") as pool:
        running = [pool.submit(lambda one: [*trials.tried(one)], fault) for fault in faults]
        for ended in as_completed(running):
            controls = {}
            for fault, outcome in ended.result():
                if not outcome.name:
                    controls[outcome.explore] = outcome
                    continue
                bad = differs(fault, outcome, controls[outcome.explore])
                wrong += [fault.name] if bad else []
                what = f"{outcome.status} {outcome.check or outcome.note or ''}".strip()
                say(f"{fault.name}: {what}{' (NOT AS LISTED)' if bad else ''}")
    say(f"{len(faults)} faults; {len(wrong)} not as listed; runs are in {out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
