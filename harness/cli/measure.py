"""What is measured and kept: endurance, speed, the upstream history, the corpus."""

import argparse

from rich.console import Console

from harness.campaigns import record as run_record
from harness.campaigns.bench import bench
from harness.campaigns.corpus import corpus_tasks, make_corpus
from harness.campaigns.history import play_history
from harness.campaigns.soak import soak
from harness.cli import FINDING, OK, default_workers
from harness.cli.display import history_table, progress
from harness.cli.regress import hunts_of
from harness.lockstep.config import resolve_device


def run_timeline(options: argparse.Namespace) -> int:
    """Play the upstream history and show what was red at each point."""
    device = resolve_device(options.device or "auto")
    if options.record is not None:
        run_record.require_writable(options.record)
    figures = play_history(device, options.workers or default_workers(device))
    Console().print(history_table(figures))
    for point in figures["points"]:
        for odd in point["odd"]:
            print(f"{point['name']}: {odd}")
    print(f"{figures['message']}; {figures['seconds']:.0f} s")
    if options.record is not None:
        run_record.write_evidence("timeline", device, figures, options.record)
    return OK if figures["as_hoped"] else FINDING


def run_corpus(options: argparse.Namespace) -> int:
    """Make the regression corpus again."""
    tasks = corpus_tasks(hunts_of(options.bug, ()))
    if not tasks:
        raise ValueError(f"none of {', '.join(options.bug)} can harm a runner that was named")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder {options.out} cannot be made: {error.strerror}") from error
    workers = min(options.workers or default_workers("cpu"), len(tasks))
    console = Console()
    with progress(console, len(tasks)) as advance:
        missed = make_corpus(tasks, options.out, workers, advance)
    console.print(f"{len(tasks) - len(missed)} cases in {options.out}", soft_wrap=True)
    if missed:
        console.print(f"[bold red]not caught[/]: {', '.join(missed)}", soft_wrap=True)
    return FINDING if missed else OK


def run_soak(options: argparse.Namespace) -> int:
    """Play many clean steps and many seeds of every bug; write the figures."""
    device = resolve_device(options.device or "auto")
    run_record.require_writable(options.record)
    workers = options.workers or default_workers(device)
    figures = soak(device, options.steps, range(options.seeds), options.first_seed, workers)
    run_record.write_evidence("soak", device, figures, options.record)
    print(figures["message"])
    return OK if figures["as_hoped"] else FINDING


def run_bench(options: argparse.Namespace) -> int:
    """Measure and print; write the figures where asked to."""
    device = resolve_device(options.device or "auto")
    if options.record is not None:
        run_record.require_writable(options.record)
    figures = bench(device)
    for row in figures["lockstep"]:
        print(f"{row['preset']:8} {row['steps_per_second']:7.0f} differential steps/s")
    if options.record is not None:
        run_record.write_evidence("bench", device, figures, options.record)
    return OK
