"""Measures speed, and compares it with bounds and with a committed record: `make bench`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from paritybit.harness.campaigns.bench import BOUNDS, committed, steps_per_second
from paritybit.harness.campaigns.watching import watching
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.records import record as run_record
from paritybit.reference.config import PRESETS
from rich.console import Console
from rich.table import Table

from paritybit.drive.engines import driven
from paritybit.watch.bench import measured

CPU_GIB, MOST_GIB, POOL_SHARE = 0.1, 60.0, 0.8
"""Pool size for the sanitizer: GiB on a CPU, the maximum in GiB, and the share of GPU memory."""

REPEATS = 3
"""The number of measured calls of the sanitizer. The result is the median."""

COLUMNS = "figure", "bound", "now", "record", "verdict"


def bench(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    engine: Annotated[
        str | None, typer.Option(help="Also measure what watching this engine costs on a CPU")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the figures to this JSON file")
    ] = None,
) -> None:
    """Measure speed, and compare it with bounds and with a committed record."""
    device = resolve_device(device)
    if record is not None:
        run_record.require_writable(record)
    if engine is not None:
        driven(engine)
    figures: dict[str, Any] = {"steps_per_second": {}}
    for preset in PRESETS:
        figures["steps_per_second"][preset] = rate = steps_per_second(preset, device)
        print(f"{preset}: {rate:.0f} differential steps/s")
    figures["pool"] = measured(gib_for(device), device, REPEATS)
    print(pool_line(figures["pool"]))
    figures["watching"] = watching(engine) if engine is not None else None
    Console().print(bounds_table(figures, committed(run_record.device_name(device))))
    if record is not None:
        run_record.write_evidence("bench", device, figures, record)


def gib_for(device: str) -> float:
    """Return the pool size for the sanitizer in GiB. On a GPU it is as large as fits."""
    if device != "cuda":
        return CPU_GIB
    free, _ = torch.cuda.mem_get_info()
    return min(MOST_GIB, POOL_SHARE * free / 2**30)


def pool_line(row: Mapping[str, Any]) -> str:
    """Return the line about the sanitizer's checksums, relative to a copy in the same run."""
    return (
        f"sanitizer: checksums of a {row['pool_gib']} GiB pool: all slots at "
        f"{row['frame_gb_per_s']} GB/s, listed slots at {row['reads_gb_per_s']} GB/s (ratio to a "
        f"copy {row['frame_over_copy']:.0%} and {row['reads_over_copy']:.0%}); "
        f"{row['ledger_bytes_per_slot']:g} bytes per slot"
    )


def bounds_table(figures: Mapping[str, Any], before: Mapping[str, Any] | None) -> Table:
    """Return the table of figures and their bounds. `before` is a committed record, if any."""
    table = Table(title="bounds", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in {"now", "record"} else "left")
    for bound in BOUNDS:
        table.add_row(*bound.cells(figures, before))
    return table


if __name__ == "__main__":
    typer.run(bench)
