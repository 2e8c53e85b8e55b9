"""Undo public fixes of the engine one at a time, and see at which seeds watch finds each.

A script: `python -m properties.sanitizer.planted.public --sources FOLDER --out FOLDER`. FOLDER of
the sources has one folder per release, as for `run`. It tries each fault at seed 0, then it
replays the first case of each found fault in the release as it is, where the finding must not
appear, and shrinks it; then come the other seeds. What the record has already is left out, so
that a run goes on.
"""

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paritybit.drive import legs
from properties.planted.run import say
from properties.sanitizer.planted.faults import Fault, read
from properties.sanitizer.planted.outcome import Status
from properties.sanitizer.planted.plant import plant
from properties.sanitizer.planted.public_record import (
    RECORD,
    TABLE,
    Run,
    own_keys,
    read_runs,
    write_runs,
)
from properties.sanitizer.planted.run import LEGS, Trials, chosen, folder_of, parser_of

SEEDS = (0, 1, 2)


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

    def engine(self, fault: Fault) -> Path:
        """Return the folder of the release with the fault, which is planted if it is not yet."""
        engine = self.out / "engines" / fault.name / fault.release
        if not engine.exists():
            plant(fault, (self.sources / fault.release).resolve(), engine)
        return engine

    def tried(self, fault: Fault, seed: int) -> Run:
        """Return what watch says of a fault at a seed, in the leg nearest to it or else in all."""
        run = self.tried_in(LEGS[frozenset(fault.needs)], self.seconds, fault, seed)
        if run.status is Status.FOUND or not self.plan:
            return run
        names = ",".join(leg.name for leg in legs.LEGS)
        later = self.tried_in(names, self.plan, fault, seed)
        leg = later.leg if later.status is Status.FOUND else "all"
        spent, seconds = round(run.cpu + later.cpu, 1), round(run.seconds + later.seconds, 1)
        return replace(later, leg=leg, cpu=spent, seconds=seconds)

    def tried_in(self, leg: str, seconds: float, fault: Fault, seed: int) -> Run:
        """Return what watch says of a fault in a leg, or in several with commas between."""
        words = ("--seed", str(seed), "--seconds", f"{seconds:g}")
        trials = Trials(self.sources, self.out / f"seed-{seed}", words)
        engine, own, before = self.engine(fault), own_keys(fault.release), cpu()
        # A run that ends with its first finding would end with one of the release's own.
        more = ("--keep-going",) if own else ()
        outcome, watched = trials.judged(fault, engine, leg, own, *more)
        new: dict[str, Any] = next(
            (f for f in watched.get("findings", []) if f["key"] not in own), {}
        )
        spent = round(cpu() - before, 1)
        return Run.of(outcome, seed, spent, new.get("key"), new.get("case"))

    def confirmed(self, fault: Fault, run: Run, shrink: float) -> Run:
        """Replay the case of a run without the fault, and shrink it with the fault."""
        case, trials = self.case(fault, run), Trials(self.sources, self.out)
        usual, log = (self.sources / fault.release).resolve(), self.out / f"{fault.name}.log"
        code = trials.run(fault, log, "replay", str(case), "--engine", str(usual))
        if code == 1 and "not reproduced" not in log.read_text(encoding="utf-8"):
            return replace(run, status=Status.MISSED, note="also without the fault")
        words = ("--engine", str(self.engine(fault)), "--seconds", f"{shrink:g}")
        code = trials.run(fault, log, "shrink", str(case), *words)
        small = case.with_name(f"{case.stem}-small.json")
        if code != 1 or not small.exists():
            return replace(run, confirmed=True, note=f"not shrunk: exit code {code}")
        waves = json.loads(small.read_text(encoding="utf-8"))["script"]["waves"]
        return replace(run, confirmed=True, requests=sum(len(wave["requests"]) for wave in waves))

    def case(self, fault: Fault, run: Run) -> Path:
        """Return the case of a run's finding."""
        folders = sorted((self.out / f"seed-{run.seed}" / fault.name).glob("2*/cases"))
        return folders[-1] / str(run.case)


def cpu() -> float:
    """Return the seconds of CPU time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def work(public: Public, faults: Sequence[Fault], shrink: float) -> None:
    """Try faults seed by seed, and write the record after each."""
    for seed in SEEDS:
        for fault in faults:
            if (fault.name, seed) not in public.runs:
                keep(public, public.tried(fault, seed))
        for fault in faults:
            mine = [run for (name, _), run in public.runs.items() if name == fault.name]
            found = [run for run in mine if run.status is Status.FOUND]
            if found and not any(run.confirmed for run in found):
                keep(public, public.confirmed(fault, found[0], shrink))


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
    asked = parser.parse_args()
    public = Public(asked.sources.resolve(), folder_of(asked), asked.seconds, asked.plan)
    public.runs.update(read_runs(RECORD))
    work(public, chosen(read(TABLE), asked.only), asked.shrink)
    return 0


if __name__ == "__main__":
    sys.exit(main())
