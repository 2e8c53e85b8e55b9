"""Undo public fixes of the engine one at a time, and see at which seeds watch finds each.

A script: `python -m properties.sanitizer.planted.public --sources FOLDER --out FOLDER`. FOLDER of
the sources has one folder per release, as for `run`. A finding counts if its case does not show it
in the release without the fault. The first case of each fault that is found is shrunk. What the
record has already is left out, so that a run goes on.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from properties.sanitizer.planted.faults import Fault, read
from properties.sanitizer.planted.outcome import Status, judge
from properties.sanitizer.planted.plant import plant
from properties.sanitizer.planted.public_record import (
    RECORD,
    TABLE,
    Run,
    first,
    read_runs,
    write_runs,
)
from properties.sanitizer.planted.run import LEGS, Trials, chosen, folder_of, parser_of
from properties.support.places import say

SEEDS = "0,1,2"

NOT_SHRUNK = "not shrunk"
"""What the note of a run begins with whose case was tried to be shrunk, and was not."""


@dataclass
class Public:
    """Watches releases in which one fix is undone.

    `seconds` are those of a watch run of one leg, `plan` those of a run of all.
    """

    sources: Path
    out: Path
    seconds: float
    plan: float
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)

    def of(self, fault: Fault) -> dict[int, Run]:
        """Return the runs of a fault by seed."""
        return {seed: run for (name, seed), run in self.runs.items() if name == fault.name}

    def engine(self, fault: Fault) -> Path:
        """Return the folder of the release with the fault, which is planted if it is not yet."""
        engine = self.out / "engines" / fault.name / fault.release
        if not engine.exists():
            part = engine.with_name(f"part-{os.getpid()}")
            plant(fault, (self.sources / fault.release).resolve(), part)
            with suppress(OSError):  # Another process may have been faster.
                part.rename(engine)
        return engine

    def tried(self, fault: Fault, seed: int) -> Run:
        """Return what watch says of a fault at a seed, in the leg nearest to it or else in all."""
        run = self.tried_in(LEGS[frozenset(fault.needs)], self.seconds, fault, seed)
        if run.status is Status.FOUND or not self.plan:
            return run
        later = self.tried_in("", self.plan, fault, seed)
        leg = later.leg if later.status is Status.FOUND else "all"
        spent, seconds = round(run.cpu + later.cpu, 1), round(run.seconds + later.seconds, 1)
        return replace(later, leg=leg, cpu=spent, seconds=seconds)

    def tried_in(self, leg: str, seconds: float, fault: Fault, seed: int) -> Run:
        """Return what watch says of a fault in a row, or in a default run."""
        words = ("--seed", str(seed), "--seconds", f"{seconds:g}")
        trials = Trials(self.sources, self.out / f"seed-{seed}", words)
        engine, before, begun = self.engine(fault), cpu(), time.monotonic()
        usual: set[str] = set()
        for more in ((), ("--keep-going",)):
            watched = trials.watch(fault, engine, leg, more)
            new = self.new(trials, fault, seed, watched, usual)
            # A run that ended with its first finding ended with one of the release's own.
            if new or not usual:
                break
        outcome = judge(fault, watched, leg, time.monotonic() - begun, usual)
        return Run.of(outcome, seed, round(cpu() - before, 1), new.get("key"), new.get("case"))

    def new(
        self, trials: Trials, fault: Fault, seed: int, watched: dict[str, Any], usual: set[str]
    ) -> dict[str, Any]:
        """Return the first finding that the release without the fault does not have, or nothing.

        The keys of those before it are added to the `usual` ones.
        """
        engine = str((self.sources / fault.release).resolve())
        log = trials.out / f"{fault.name}-without.log"
        for finding in watched.get("findings", ()):
            if finding["key"] in usual or finding.get("case") is None:
                continue
            case = self.folder(fault, seed) / finding["case"]
            code = trials.run(fault, log, "replay", str(case), "--engine", engine)
            if code != 1 or "not reproduced" in log.read_text(encoding="utf-8"):
                found: dict[str, Any] = finding
                return found
            usual.add(finding["key"])
        return {}

    def shrunk(self, fault: Fault, run: Run, seconds: float) -> Run:
        """Shrink the case of a run that found the fault. One without requests is small already."""
        case, trials = self.folder(fault, run.seed) / str(run.case), Trials(self.sources, self.out)
        log = self.out / f"{fault.name}-shrink.log"
        if not json.loads(case.read_text(encoding="utf-8"))["script"]["waves"]:
            return replace(run, requests=0)  # The engine's start alone shows the finding.
        words = ("--engine", str(self.engine(fault)), "--seconds", f"{seconds:g}")
        code = trials.run(fault, log, "shrink", str(case), *words)
        small = case.with_name(f"{case.stem}-small.json")
        if code != 1 or not small.exists():
            return replace(run, note=f"{NOT_SHRUNK}: exit code {code}")
        waves = json.loads(small.read_text(encoding="utf-8"))["script"]["waves"]
        return replace(run, requests=sum(len(wave["requests"]) for wave in waves))

    def folder(self, fault: Fault, seed: int) -> Path:
        """Return the folder of the cases of a fault's last run."""
        return sorted((self.out / f"seed-{seed}" / fault.name).glob("2*/cases"))[-1]


def cpu() -> float:
    """Return the seconds of CPU time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def work(
    public: Public, faults: Sequence[Fault], seeds: Sequence[int], shrink: float, jobs: int
) -> None:
    """Try faults seed by seed, then shrink what was found; write the record after each."""
    with ProcessPoolExecutor(jobs) as pool:
        tries = {
            pool.submit(public.tried, fault, seed)
            for seed in seeds
            for fault in faults
            if (fault.name, seed) not in public.runs
        }
        for done in as_completed(tries):
            keep(public, done.result())
        firsts = ((fault, first(public.of(fault))) for fault in faults)
        shrinks = {
            pool.submit(public.shrunk, fault, run, shrink)
            for fault, run in firsts
            if run is not None and run.requests is None and NOT_SHRUNK not in (run.note or "")
        }
        for done in as_completed(shrinks):
            keep(public, done.result())


def keep(public: Public, run: Run) -> None:
    """Write a run to the record, and say what it is."""
    public.runs[run.name, run.seed] = run
    write_runs(RECORD, public.runs.values())
    left = "" if run.requests is None else f", {run.requests} requests left"
    say(f"{run.name}, seed {run.seed}: {run.status} {run.check or ''} ({run.cpu:.0f} s CPU{left})")


def main() -> int:
    """Try what is asked for, and return the exit code."""
    parser = parser_of("Undo public fixes; see what watch finds.")
    parser.add_argument("--seconds", type=float, default=60.0, help="Seconds of each watch run")
    parser.add_argument("--plan", type=float, default=0.0, help="Seconds of all legs after a miss")
    parser.add_argument("--shrink", type=float, default=40.0, help="Seconds of each search")
    parser.add_argument("--seeds", default=SEEDS, help="Seeds to try, with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="Faults that are tried at a time")
    asked = parser.parse_args()
    public = Public(asked.sources.resolve(), folder_of(asked), asked.seconds, asked.plan)
    public.runs.update(read_runs(RECORD))
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    work(public, chosen(read(TABLE), asked.only), seeds, asked.shrink, asked.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
