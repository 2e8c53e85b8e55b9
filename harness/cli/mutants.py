"""Hunting every contract mutant."""

import argparse
import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from harness.campaigns.executor import processes_for
from harness.campaigns.mutants.hunting import End, MutantHunt
from harness.campaigns.mutants.score import MutantEnded, figures, hunt_all
from harness.cli.display import print_errors
from harness.cli.exit_codes import INTERRUPTED, code_of
from harness.cli.folders import default_workers
from harness.lockstep.config import known, resolve_device
from harness.records import record as run_record
from subjects.mutants.mutant import Mistake, mutants
from subjects.runners import RUNNERS


def run_mutants(options: argparse.Namespace) -> int:
    """Hunt the mutants asked for; print the score, write the record."""
    for name in options.runner:
        known("runner", name, RUNNERS)
    device = resolve_device(options.device or "auto")
    if options.record is not None:
        run_record.require_writable(options.record)
    seeds = tuple(range(options.first_seed, options.first_seed + options.seeds))
    hunts = [
        MutantHunt(mutant, seeds, options.examples, device)
        for mutant in mutants()
        if not options.runner or mutant.runner in options.runner
    ]
    workers = processes_for(options.workers or default_workers(device), device)
    ends: list[MutantEnded] = []
    clock, interrupted = time.monotonic(), False
    console = Console()
    try:
        with Progress(transient=True, console=console) as progress:
            bar = progress.add_task(f"{len(hunts)} mutants", total=len(hunts))

            def on_end(ended: MutantEnded) -> None:
                ends.append(ended)
                progress.advance(bar)

            hunt_all(hunts, workers, on_end)
    except KeyboardInterrupt:
        interrupted = True
    settings = {"seeds": list(seeds), "examples": options.examples, "interrupted": interrupted}
    found = figures(ends, len(hunts), time.monotonic() - clock, settings)
    console.print(score_table(found["rows"]))
    console.print(f"{found['message']}; {found['seconds']:.0f} s", soft_wrap=True, markup=False)
    print_errors(failure["error"] for failure in found["errors"])
    if options.record is not None:
        run_record.write_evidence("mutants", device, found, options.record)
    return INTERRUPTED if interrupted else code_of(found)


def score_table(rows: list[dict[str, Any]]) -> Table:
    """Return how many mutants are seen, or cannot matter, of all: a row for each mistake."""
    runners = [name for name in RUNNERS if any(row["runner"] == name for row in rows)]
    table = Table(title="contract mutants: seen + cannot matter / all", show_lines=False)
    table.add_column("mistake")
    for name in (*runners, "all"):
        table.add_column(name, justify="right")
    for mistake in (*Mistake, None):
        of_kind = [row for row in rows if mistake is None or row["mistake"] == mistake]
        cells = [
            cell([row for row in of_kind if name is None or row["runner"] == name])
            for name in (*runners, None)
        ]
        table.add_row("all" if mistake is None else str(mistake), *cells)
    return table


def cell(rows: list[dict[str, Any]]) -> str:
    """Return the score of some mutants; – where there is none."""
    ends = Counter(row["end"] for row in rows)
    if not rows:
        return "–"
    spared = f"+{ends[End.CANNOT_MATTER]}" if ends[End.CANNOT_MATTER] else ""
    return f"{ends[End.SEEN]}{spared}/{len(rows)}"
