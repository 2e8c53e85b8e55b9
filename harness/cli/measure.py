"""Measuring endurance and speed, and playing the upstream history."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from harness.campaigns.bench import bench
from harness.campaigns.history import play_history
from harness.campaigns.soak import soak
from harness.cli.display import history_table, print_errors
from harness.cli.exit_codes import OK, code_of
from harness.cli.folders import default_workers
from harness.lockstep.config import resolve_device
from harness.records import record as run_record
from reports.texts import or_dash


def run_soak(options: argparse.Namespace) -> int:
    """Play many clean steps and many seeds of every bug; write the figures."""
    device = resolve_device(options.device or "auto")
    run_record.require_writable(options.record)
    if options.table is not None:
        run_record.require_writable(options.table)
    workers = options.workers or default_workers(device)
    figures = soak(device, options.steps, range(options.seeds), options.first_seed, workers)
    run_record.write_evidence("soak", device, figures, options.record)
    if options.table is not None:
        options.table.write_text(detection_table(figures["bugs"]), encoding="utf-8")
    print(figures["message"])
    print_errors(failure["error"] for failure in figures["errors"])
    return code_of(figures)


def detection_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown table of how many schedules the seeds needed for each bug on a runner."""
    lines = [
        "| bug | runner | detected by | seeds | detected | median | most |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        found = row["seeds"], row["caught"], or_dash(row["median"]), or_dash(row["most"])
        cells = f"`{row['bug']}`", f"`{row['runner']}`", f"`{row['property']}`", *map(str, found)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


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
    print_errors(failure["error"] for failure in figures["errors"])
    if options.record is not None:
        run_record.write_evidence("timeline", device, figures, options.record)
    return code_of(figures)
