"""Soaking a released engine."""

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paritybit.harness.cli.engines.display import Telling
from paritybit.harness.cli.engines.trial import EXIT_CODES, replay_of
from paritybit.harness.cli.exit_codes import INTERRUPTED
from paritybit.harness.cli.folders import shown
from paritybit.harness.cli.spreading import print_run_again
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines.campaigns.soak import Soaked, cases_of, figures, soak
from paritybit.harness.engines.trial import Settings
from paritybit.harness.errors import MalformedError
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.machine.workers import workers_for
from paritybit.harness.records import record as run_record
from paritybit.harness.records.record import device_name
from paritybit.reports.texts import or_dash
from rich.console import Console
from rich.table import Table

STEPS = 1000
"""Steps of each runner, if nothing else is asked for."""


def soak_engine(options: argparse.Namespace) -> int:
    """Play many steps of each runner of an engine; write the figures and the cases."""
    if options.seeds is not None or options.table is not None:
        raise MalformedError(
            "--seeds and --table apply to the project's own bugs and cannot be used with --engine"
        )
    if options.steps == 0:
        raise MalformedError("--steps 0 plays nothing (see paritybit soak --help)")
    device = resolve_device(options.device or "auto")
    settings = Settings(
        device=device,
        seed=options.first_seed,
        runners=options.runner,
        presets=options.preset,
        workers=workers_for(device, options.workers),
    )
    run_record.require_writable(options.record)
    engine = engines.find(options.engine)
    console, log = Console(), options.record.with_name(f"{options.record.name}.log")
    console.print(f"paritybit: soak {engine.name} on {device_name(device)}")
    log.unlink(missing_ok=True)
    soaked = soak(engine, settings, options.steps or STEPS, log, Telling(console))
    with heard_at_the_end():
        return finish(console, engine.name, settings, options, soaked)


def finish(
    console: Console, name: str, settings: Settings, options: argparse.Namespace, soaked: Soaked
) -> int:
    """Show what a soak of an engine gave; write the figures and the cases; return the exit code."""
    folder = options.record.with_name(f"{options.record.stem}-cases")
    found = {
        "command": shlex.join(["paritybit", *map(shown, options.typed)]),
        "workers": settings.workers.processes,
        **figures(soaked, name, shown(str(folder))),
    }
    cases = cases_of(shown(options.engine), soaked)
    show(console, found, options.record, folder, options.engine)
    for file, case in cases.items():
        case.write(folder / file)
    print_run_again(settings.workers)
    run_record.write_evidence(
        "engine-soak", settings.device, without_paths(found), options.record, settings.workers
    )
    return INTERRUPTED if found["interrupted"] else EXIT_CODES[found["verdict"]]


def show(
    console: Console, found: Mapping[str, Any], record: Path, folder: Path, engine: str
) -> None:
    """Print what a soak gave: by runner, every finding, what is listed, what was not tried.

    `folder` is where the cases lie, `engine` what was asked for.
    """
    console.print(runner_table(found))
    lines = [
        *(f"finding: {line_of(finding)}" for finding in found["findings"]),
        *(f"known difference, not a finding: {line_of(finding)}" for finding in found["listed"]),
        *found["notes"],
        *(f"{entry['runner']} is not available: {entry['reason']}" for entry in found["lacking"]),
        *(f"replaced: {part}" for part in found["emulated"]),
        *(f"undecided: {entry['leg']}: {entry['reason']}" for entry in found["undecided"]),
        *(
            f"to replay: {replay_of(folder / Path(finding['case']).name, engine)}"
            for finding in found["findings"]
            if finding["case"]
        ),
        f"record: {record}",
        f"{found['verdict']}: {found['message']}; {found['seconds']:.0f} s",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def line_of(finding: Mapping[str, Any]) -> str:
    """Return a finding in one line: where, what, which fault class, from which seed, and why."""
    classes = f" ({', '.join(finding['faults'])})" if finding["faults"] else ""
    where = f"{finding['runner']} {finding['preset']}, seed {finding['seed']}"
    why = "".join(f"; {why}" for why in (finding["cause"], finding["listed"]) if why)
    return f"{finding['property']} on {where}{classes}: {finding['message']}{why}"


def runner_table(found: Mapping[str, Any]) -> Table:
    """Return what was played of each runner."""
    table = Table(title=f"{found['engine']}: steps per runner", box=None)
    table.add_column("runner")
    table.add_column("models")
    for column in ("schedules", "steps", "replays", "padded", "steps/s", "findings"):
        table.add_column(column, justify="right")
    for row in found["runners"]:
        here = sum(finding["runner"] == row["runner"] for finding in found["findings"])
        counts = [row[name] for name in ("schedules", "steps", "replays", "padded")]
        cells = (*counts, or_dash(row["steps_per_second"]), here)
        table.add_row(row["runner"], ", ".join(row["presets"]), *map(str, cells))
    return table
