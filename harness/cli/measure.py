"""The command `mutants`."""

import argparse
import time
from collections import Counter
from typing import Any

from paritybit.harness.campaigns.mutants.hunting import End, MutantHunt
from paritybit.harness.campaigns.mutants.score import MutantEnded, hunt_all, mutant_figures
from paritybit.harness.cli.display import print_errors
from paritybit.harness.cli.exit_codes import INTERRUPTED, code_of
from paritybit.harness.errors import known
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.machine.workers import Workers, sparing, workers_for
from paritybit.harness.records import record as run_record
from paritybit.harness.records.schema import RunAgain
from paritybit.reports.hitches import run_again
from paritybit.subjects.mutants.mutant import Mistake, mutants
from paritybit.subjects.runners import RUNNERS
from rich.console import Console
from rich.progress import Progress
from rich.table import Table


def run_mutants(options: argparse.Namespace) -> int:
    """Hunt the requested mutants, print the score, and write the record."""
    for name in options.runner:
        known("runner", name, RUNNERS)
    device = resolve_device(options.device or "auto")
    workers = workers_for(device, options.workers)
    if options.record is not None:
        run_record.require_writable(options.record)
    seeds = tuple(range(options.first_seed, options.first_seed + options.seeds))
    hunts = [
        MutantHunt(mutant, seeds, options.examples, device)
        for mutant in mutants()
        if not options.runner or mutant.runner in options.runner
    ]
    ends: list[MutantEnded] = []
    clock, interrupted = time.monotonic(), False
    console = Console()
    try:
        with Progress(transient=True, console=console) as progress:
            bar = progress.add_task(f"{len(hunts)} mutants", total=len(hunts))

            def on_end(ended: MutantEnded) -> None:
                ends.append(ended)
                progress.advance(bar)

            hunt_all(hunts, sparing(workers, device), on_end)
    except KeyboardInterrupt:
        interrupted = True
    settings = {"seeds": list(seeds), "examples": options.examples, "interrupted": interrupted}
    with heard_at_the_end():
        found = mutant_figures(ends, len(hunts), time.monotonic() - clock, settings)
        console.print(score_table(found["rows"]))
        console.print(f"{found['message']}; {found['seconds']:.0f} s", soft_wrap=True, markup=False)
        print_run_again(workers)
        print_errors(failure["error"] for failure in found["errors"])
        if options.record is not None:
            run_record.write_evidence("mutants", device, found, options.record, workers)
    return INTERRUPTED if interrupted else code_of(found)


def print_run_again(workers: Workers) -> None:
    """Print which tasks were run again, if any were."""
    if workers.again:
        print(f"tasks run again: {run_again([RunAgain(*told) for told in workers.again])}")


def score_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table of detected and harmless mutants out of all, one row per mistake."""
    runners = [name for name in RUNNERS if any(row["runner"] == name for row in rows)]
    table = Table(title="mutants of static buffers: detected + harmless / all", show_lines=False)
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
    """Return the score of some mutants, or – if there are none."""
    ends = Counter(row["end"] for row in rows)
    if not rows:
        return "–"
    spared = f"+{ends[End.CANNOT_MATTER]}" if ends[End.CANNOT_MATTER] else ""
    return f"{ends[End.SEEN]}{spared}/{len(rows)}"
