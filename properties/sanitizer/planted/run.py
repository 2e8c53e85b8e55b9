"""Plant the faults of the table, one at a time, and see what `paritybit watch` says of each.

A script: `python -m properties.sanitizer.planted.run --sources FOLDER`. FOLDER has one folder per
release, such as `0.5.23`, in which its wheel is unpacked. A release is first watched without a
fault; what is found then counts for no fault. Faults that the record has an outcome of are left
out, so that a run that was interrupted goes on. Exits with 0 if all faults are found.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, current_thread
from typing import Any

from properties.sanitizer.planted.faults import TABLE, Fault, read
from properties.sanitizer.planted.outcome import DEVICES, Outcome, Status, judge, write
from properties.sanitizer.planted.outcome import read as read_record
from properties.sanitizer.planted.plant import plant
from properties.support.places import ROOT, say

EVIDENCE = ROOT / "reports/evidence"

LEGS: Mapping[frozenset[str], str] = {
    frozenset(): "decode graphs",
    frozenset({"page"}): "page size 16",
    frozenset({"large-chunks"}): "chunks larger than the window pool",
    frozenset({"tight"}): "few window slots",
    frozenset({"tight", "page"}): "few window pages + page size 16",
    frozenset({"wide-page"}): "page size 64 + overlap",
    frozenset({"page", "eagle"}): "page size 16 + EAGLE topk 1",
    frozenset({"small-page", "eagle"}): "page size 4 + EAGLE topk 1",
    frozenset({"eagle"}): "page size 16 + EAGLE topk 1",
    frozenset({"eagle", "overlap"}): "EAGLE topk 1 + overlap",
    frozenset({"eagle", "topk"}): "EAGLE topk 2 + few window slots",
    frozenset({"draft-model"}): "draft model + overlap",
    frozenset({"whole-prompts"}): "attention sinks + whole prompts",
    frozenset({"overlap"}): "overlap",
    frozenset({"no-prefix-cache"}): "no prefix cache",
    frozenset({"prefill-graphs"}): "breakable prefill graphs",
    frozenset({"windows"}): "sliding window",
    frozenset({"shared"}): "shared prefixes",
    frozenset({"samples"}): "several samples",
    frozenset({"offload"}): "offload to the host",
    frozenset({"sinks"}): "attention sinks + page size 64",
    frozenset({"no-graphs"}): "no graphs",
    frozenset({"overlap-windows"}): "overlap",
    frozenset({"async"}): "async scheduling",
    frozenset({"newer-runner"}): "newer runner",
    frozenset({"drafts"}): "n-gram speculation",
    frozenset({"drafts", "newer-runner"}): "newer runner + n-gram speculation",
    frozenset({"drafts", "draft-model"}): "EAGLE",
    frozenset({"drafts", "draft-model", "newer-runner"}): "newer runner + EAGLE",
    frozenset({"newer-breakable"}): "newer runner + breakable graphs",
    frozenset({"newer-actions"}): "newer runner + async scheduling + actions",
    frozenset({"wide-window"}): "window of three blocks",
    frozenset({"actions"}): "actions",
    frozenset({"adapters"}): "LoRA adapters",
    frozenset({"ranks"}): "idle data-parallel rank",
    frozenset({"host"}): "KV on the host",
    frozenset({"states"}): "states of convolutions",
    frozenset({"actions", "overlap"}): "actions + overlap + page size 16",
}
"""The row of settings that comes nearest to what a fault needs."""

MOST_SECONDS = 900.0
"""Seconds after which a watched engine is taken to hang."""


@dataclass
class Trials:
    """Watches engines, with faults and without. `out` keeps what each run leaves, for a look."""

    sources: Path
    out: Path
    words: tuple[str, ...] = ()
    device: str = "cpu"
    locks: defaultdict[str, Lock] = field(default_factory=lambda: defaultdict(Lock))
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    stopping: bool = False

    def stop(self) -> None:
        """Stop the engines that are watched, and plant no further fault."""
        self.stopping = True
        for process in list(self.running):
            process.terminate()

    def tried(self, fault: Fault, leg: str, known: dict[str, Outcome]) -> Iterator[Outcome]:
        """Yield the outcome of a fault, and first that of its control run if that is new."""
        control = Fault(f"{fault.release}: {leg}", "control", "", "", "", "", fault.release)
        control = replace(control, environment=fault.environment)
        if fault.environment:
            named = " ".join(f"{name}={value}" for name, value in fault.environment.items())
            control = replace(control, name=f"{control.name}, {named}")
        with self.locks[control.name]:
            usual = known.get(control.name)
            if usual is None:
                usual = self.outcome(control, leg, (), "--keep-going")
                known[control.name] = usual
                yield usual
        # A run that ends with its first finding would end with one of the release's own.
        yield self.outcome(fault, leg, usual.keys, *(["--keep-going"] if usual.keys else []))

    def outcome(self, fault: Fault, leg: str, control: Sequence[str], *words: str) -> Outcome:
        """Plant a fault, watch the engine, and return what was said."""
        if self.stopping:
            raise KeyboardInterrupt
        engine = self.sources / current_thread().name / fault.release  # One path: compiled files.
        shutil.rmtree(engine, ignore_errors=True)
        try:
            plant(fault if fault.old else None, self.sources / fault.release, engine)
        except ValueError as error:
            return Outcome(fault.name, fault.release, leg, Status.UNFIT, 0.0, note=str(error))
        begun = time.monotonic()
        watched = self.watch(fault, engine, leg, words)
        return judge(fault, watched, leg, time.monotonic() - begun, control)

    def watch(self, fault: Fault, engine: Path, leg: str, words: Sequence[str]) -> dict[str, Any]:
        """Return the record of `paritybit watch` for an engine's folder."""
        out = self.out / fault.name.replace(": ", "-").replace(" ", "-").replace(",", "")
        log = out.with_name(f"{out.name}.log")
        asked = ("--device", self.device, "--out", str(out), *self.words, *words)
        asked += ("--settings", leg) if leg else ()
        self.run(fault, log, "watch", "--engine", str(engine), *asked)
        records = sorted(out.glob("**/watch.json"))
        if not records:
            return {"undecided": [f"no record; see {log.name}"]}
        data: dict[str, Any] = json.loads(records[-1].read_text(encoding="utf-8"))
        return data

    def run(self, fault: Fault, log: Path, *words: str) -> int | None:
        """Run a command of paritybit with what a fault needs, and return its exit code."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            log.open("wb") as file,
            subprocess.Popen(
                (sys.executable, "-m", "paritybit", *words),
                cwd=ROOT,
                env={**os.environ, **fault.environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            self.running.add(process)
            try:
                process.wait(MOST_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
            self.running.discard(process)
        return process.returncode


def chosen(faults: Sequence[Fault], only: str | None) -> tuple[Fault, ...]:
    """Return the faults named, by comma, or all. Raises SystemExit for an unknown name."""
    if only is None:
        return tuple(faults)
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {fault.name: fault for fault in faults}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SystemExit(f"unknown fault: {', '.join(unknown) or 'none is named'}")
    return tuple(known[name] for name in names)


def record_of(table: Path) -> Path:
    """Return where the outcomes of a table go, if nothing else is said."""
    return EVIDENCE / f"planted-sanitizer{table.stem.removeprefix('faults')}.json"


def parser_of(about: str) -> argparse.ArgumentParser:
    """Return a command line with the options of every script that plants faults."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--sources", type=Path, required=True, help="Folder of unpacked releases")
    parser.add_argument("--out", type=Path, help="Where runs, and their engines, are kept")
    parser.add_argument("--only", metavar="NAME,...", help="Plant these faults alone")
    return parser


def folder_of(asked: argparse.Namespace) -> Path:
    """Return where runs are kept: where the command line says, or a new folder."""
    folder: Path = asked.out or Path(tempfile.mkdtemp(prefix="planted-"))
    return folder.resolve()


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = parser_of("Plant faults in an engine; see what watch says.")
    parser.add_argument("--table", type=Path, default=TABLE, help="A table of faults (faults.toml)")
    parser.add_argument("--record", type=Path, help="Where outcomes go, as JSON")
    parser.add_argument("--leg", help="The leg to run, whatever a fault needs")
    parser.add_argument("--device", choices=tuple(DEVICES), default="cpu")
    parser.add_argument("--release", help="Plant in this release, whatever the table says")
    parser.add_argument("--jobs", type=int, default=1, help="Engines that are watched at a time")
    parser.add_argument("words", nargs="*", help="Further words for `paritybit watch`, after --")
    return parser.parse_args()


def main() -> int:
    """Plant the faults asked for and return the exit code."""
    asked = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    faults = read(asked.table)
    if asked.release is not None:
        faults = tuple(replace(fault, release=asked.release) for fault in faults)
    record = asked.record or record_of(asked.table)
    known = read_record(record)
    left = chosen(faults, asked.only)
    if asked.only is None:
        left = tuple(fault for fault in left if fault.name not in known)
    out = folder_of(asked)
    trials = Trials(asked.sources.resolve(), out, tuple(asked.words), asked.device)
    with ThreadPoolExecutor(asked.jobs, "planted") as pool:
        legs = [asked.leg or LEGS[frozenset(fault.needs)] for fault in left]
        running = [
            pool.submit(lambda fault, leg: list(trials.tried(fault, leg, known)), fault, leg)
            for fault, leg in zip(left, legs, strict=True)
        ]
        try:
            for place, ended in enumerate(as_completed(running), 1):
                for outcome in ended.result():
                    known[outcome.name] = outcome
                    what = " ".join(filter(None, (outcome.status, outcome.check)))
                    say(f"[{place}/{len(left)}] {outcome.name}: {what} ({outcome.seconds:.0f} s)")
                write(record, known, faults, asked.device)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            trials.stop()
            raise
    write(record, known, faults, asked.device)
    tried = [known[fault.name] for fault in faults if fault.name in known]
    found = sum(outcome.status is Status.FOUND for outcome in tried)
    say(f"{found} of {len(tried)} found; runs are in {out}")
    return 0 if found == len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
