"""The command `bench`: measures speed, and compares it with a committed record."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from paritybit.harness.campaigns.bench import bench
from paritybit.harness.campaigns.measuring.bandwidth import bandwidths
from paritybit.harness.campaigns.measuring.before import against, beginning_of, committed, spread_of
from paritybit.harness.campaigns.measuring.beginnings import beginnings
from paritybit.harness.campaigns.measuring.budgets import COLUMNS, Held, held
from paritybit.harness.campaigns.measuring.captures import share_of_captures
from paritybit.harness.campaigns.measuring.commands import against_tree, commands, module_of
from paritybit.harness.campaigns.measuring.profile import profiles
from paritybit.harness.campaigns.measuring.sharing import sharing_rates
from paritybit.harness.campaigns.measuring.watching import watching
from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.cli.folders import shown
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.records import record as run_record
from paritybit.harness.records.typed_json import to_json
from rich.console import Console
from rich.table import Table

from paritybit.drive.engines import driven
from paritybit.watch.bench import measured

Data = Mapping[str, Any]

CPU_GIB, MOST_GIB, POOL_SHARE = 0.1, 60.0, 0.8
"""Pool size for the sanitizer: GiB on a CPU, the maximum in GiB, and the share of GPU memory."""

REPEATS = 3
"""The number of measured calls of the sanitizer. The result is the median."""


def run_bench(options: argparse.Namespace) -> int:
    """Measure and print. Write the figures if requested."""
    device = resolve_device(options.device or "auto")
    if options.record is not None:
        run_record.require_writable(options.record)
    if options.against is not None:
        module_of(options.against)
    if options.engine is not None:
        driven(options.engine)
    figures = bench(device)
    for row in figures["lockstep"]:
        print_preset(row)
    figures["captures"] = share_of_captures(device)
    print(captures_line(figures["captures"]))
    figures["bandwidth"] = bandwidths(device)
    print_bandwidth(figures["bandwidth"])
    figures["sharing"] = []
    for row in sharing_rates(device, options.processes):
        figures["sharing"].append(row)
        print(sharing_line(row))
    figures["beginnings"] = []
    for row in beginnings(device):
        figures["beginnings"].append(row)
        print(beginning_line(row))
    figures["sanitizer"] = measured(gib_for(device), device, REPEATS)
    print(sanitizer_line(figures["sanitizer"]))
    figures["commands"] = list(commands())
    for row in figures["commands"]:
        print(f"{row['command']}: {row['cpu_seconds']} CPU seconds")
    figures["profile"] = []
    for row in profiles(device):
        figures["profile"].append(row)
        print(profile_line(row))
    figures["against"] = []
    for row in against_tree(options.against) if options.against is not None else ():
        figures["against"].append(row)
        print(against_line(row))
    figures["watching"] = watching(options.engine) if options.engine is not None else None
    if figures["watching"] is not None:
        print(watching_line(figures["watching"]))
    environment = to_json(run_record.environment(device))
    found = committed(environment, figures)
    figures["before"] = compared(environment, figures, found)
    budgets = held(figures, None if found is None else found[1])
    figures["budgets"] = [row.data for row in budgets]
    Console().print(budget_table(budgets))
    if options.record is not None:
        run_record.write_evidence("bench", device, figures, options.record)
    return OK


def gib_for(device: str) -> float:
    """Return the pool size for the sanitizer in GiB. On a GPU it is as large as fits."""
    if device != "cuda":
        return CPU_GIB
    free, _ = torch.cuda.mem_get_info()
    return min(MOST_GIB, POOL_SHARE * free / 2**30)


def sanitizer_line(row: Data) -> str:
    """Return the line about the sanitizer's checksums, relative to a copy in the same run."""
    return (
        f"sanitizer: checksums of a {row['pool_gib']} GiB pool: all slots at "
        f"{row['frame_gb_per_s']} GB/s, listed slots at {row['reads_gb_per_s']} GB/s (ratio to a "
        f"copy {row['frame_over_copy']:.0%} and {row['reads_over_copy']:.0%}); "
        f"{row['ledger_bytes_per_slot']:g} bytes per slot"
    )


def print_preset(row: Data) -> None:
    """Print the figures of one preset."""
    print(
        f"{row['preset']:8} {row['steps_per_second']:7.0f} differential steps/s; "
        f"{row['share_of_held_checks']:.0%} of the time goes to checks of reads, index tables "
        "and slot ownership"
    )
    parts = ", ".join(f"{name} {ms}" for name, ms in row["parts_milliseconds"].items())
    print(
        f"         one step takes as long as {row['step_in_products']} matrix products of "
        f"8 x 64 floats: {row['step_milliseconds']} ms ({parts})"
    )
    print(
        f"         {row['captures_per_second']:.0f} captures/s, {row['schedules_per_second']} "
        "generated schedules/s, on the CPU"
    )


def captures_line(row: Data) -> str:
    """Return the line about the share of captures."""
    count, seconds = len(row["hunts"]), row["seconds"]
    return f"captures take {row['share_of_captures']:.0%} of {seconds} CPU seconds in {count} hunts"


def print_bandwidth(found: Data) -> None:
    """Print the bandwidths of comparing and copying storages."""
    print(
        f"storages: compared at {found['comparison_gb_per_second']} GB/s, copied at "
        f"{found['copy_gb_per_second']} GB/s (ratio {found['comparison_over_copy']:.0%})"
    )


def sharing_line(row: Data) -> str:
    """Return the line about the rate of several processes, or why it was not measured."""
    if "processes" not in row:
        return f"not measured under MPS: {row['error']}"
    if row["error"] is not None:
        return f"{spread_of(row)}: failed: {row['error']}"
    return f"{spread_of(row)}: {row['steps_per_second']:.0f} differential steps/s in total"


def beginning_line(row: Data) -> str:
    """Return the line about processes that initialise CUDA per second, or about a failure."""
    if row["begun_per_second"] is None:
        return f"{beginning_of(row)}: failed because a process did not answer"
    return f"{beginning_of(row)}: {row['begun_per_second']} processes/s"


def profile_line(row: Data) -> str:
    """Return the largest costs of a hunt or a clean trial."""
    costs = ", ".join(f"{name} {share:.0%}" for name, share in row["parts"].items())
    files = ", ".join(f"{name} {share:.0%}" for name, share in row["files"].items())
    return f"profile of {row['task']}: {row['cpu_seconds']} CPU seconds: {costs}; by file: {files}"


def against_line(row: Data) -> str:
    """Return what a command costs here and in another tree."""
    return (
        f"paritybit {row['command']}: {row['cpu_seconds']} CPU seconds, in the other tree "
        f"{row['other_cpu_seconds']} (ratio {row['ratio']}; bugs of both trees: {row['bugs']})"
    )


def watching_line(row: Data) -> str:
    """Return what watching an engine costs."""
    return (
        f"watch --engine {row['engine']}: a verdict after {row['seconds_until_verdict']} s, then "
        f"{row['forwards_per_second']} forward passes/s with all cheap checks, in "
        f"{row['over_unwatched']} of the unwatched time"
    )


def budget_table(rows: Sequence[Held]) -> Table:
    """Return the table of figures and their bounds."""
    table = Table(title="bounds", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in {"now", "record"} else "left")
    for row in rows:
        table.add_row(*row.cells)
    return table


def compared(environment: Data, figures: Data, found: tuple[Path, Data] | None) -> Data | None:
    """Print the figures next to those of a committed record. Returns both, or None without one."""
    if found is None:
        print(f"cannot compare: no committed record for {environment['device_name']}")
        return None
    path, data = found
    rows: Sequence[Data] = list(against(figures, data["figures"]))
    commit = str(data["environment"]["commit"])[:12]
    print(f"compared with {shown(str(path), keep=3)} from commit {commit}:")
    for row in rows:
        print(f"  {row['figure']}: {row['now']} now, {row['before']} before (ratio {row['ratio']})")
    return {"record": shown(str(path), keep=3), "commit": commit, "figures": rows}
