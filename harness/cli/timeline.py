"""Playing the upstream history."""

import argparse

from rich.console import Console

from harness.campaigns.history import play_history
from harness.cli.display import history_table, print_errors
from harness.cli.exit_codes import code_of
from harness.cli.folders import default_workers
from harness.lockstep.config import resolve_device
from harness.records import record as run_record


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
