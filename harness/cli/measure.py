"""The commands `soak`, `mutants` and `timeline`."""

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paritybit.harness.campaigns.history import play_history
from paritybit.harness.campaigns.mutants.hunting import End, MutantHunt
from paritybit.harness.campaigns.mutants.score import MutantEnded, hunt_all, mutant_figures
from paritybit.harness.campaigns.soak import soak, trials
from paritybit.harness.cli.display import history_table, print_errors
from paritybit.harness.cli.exit_codes import INTERRUPTED, code_of
from paritybit.harness.cli.spreading import (
    fitting,
    print_run_again,
    workers_asked_for,
)
from paritybit.harness.errors import MalformedError, known
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.machine.workers import sparing
from paritybit.harness.records import record as run_record
from paritybit.harness.records.files import write_whole
from paritybit.reference.config import Shape
from paritybit.reports.texts import or_dash
from paritybit.subjects.mutants.mutant import Mistake, mutants
from paritybit.subjects.runners import RUNNERS
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

STEPS, SEEDS = 20_000, 20
"""The default number of clean steps, and of seeds per bug."""


def run_soak(options: argparse.Namespace) -> int:
    """Play many clean steps, hunt each bug with many seeds, and write the figures."""
    steps = STEPS if options.steps is None else options.steps
    seeds = SEEDS if options.seeds is None else options.seeds
    if not (steps or seeds):
        raise MalformedError("--steps 0 --seeds 0 plays nothing (see paritybit soak --help)")
    device = resolve_device(options.device or "auto")
    shape = Shape(options.shape)
    workers = fitting(workers_asked_for(options, device), trials(device, shape))
    run_record.require_writable(options.record)
    if options.table is not None:
        run_record.require_writable(options.table)
    figures = soak(device, steps, range(seeds), options.first_seed, workers, shape)
    with heard_at_the_end():
        print(figures["message"])
        print_run_again(workers)
        print_errors(failure["error"] for failure in figures["errors"])
        run_record.write_evidence("soak", device, figures, options.record, workers)
        if options.table is not None:
            write_whole(options.table, detection_table(figures["bugs"]))
    return INTERRUPTED if figures["interrupted"] else code_of(figures)


def detection_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of the schedules that the seeds needed for each bug and runner."""
    lines = [
        "| bug | runner | detected by | seeds | detected | median | most |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        found = row["seeds"], row["caught"], or_dash(row["median"]), or_dash(row["most"])
        cells = f"`{row['bug']}`", f"`{row['runner']}`", f"`{row['property']}`", *map(str, found)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def run_timeline(options: argparse.Namespace) -> int:
    """Play the upstream history, and show the violated properties at each point."""
    device = resolve_device(options.device or "auto")
    workers = workers_asked_for(options, device)
    if options.record is not None:
        run_record.require_writable(options.record)
    figures = play_history(device, workers)
    with heard_at_the_end():
        Console().print(history_table(figures))
        for point in figures["points"]:
            for odd in point["odd"]:
                print(f"{point['name']}: {odd}")
        print(f"{figures['message']}; {figures['seconds']:.0f} s")
        print_run_again(workers)
        print_errors(failure["error"] for failure in figures["errors"])
        if options.record is not None:
            run_record.write_evidence("timeline", device, figures, options.record, workers)
    return code_of(figures)


def run_mutants(options: argparse.Namespace) -> int:
    """Hunt the requested mutants, print the score, and write the record."""
    for name in options.runner:
        known("runner", name, RUNNERS)
    device = resolve_device(options.device or "auto")
    workers = workers_asked_for(options, device)
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
