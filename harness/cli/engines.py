"""Released engines on trial: one of them, or all in order."""

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.cli.engine_display import (
    changes,
    fault_table,
    notes,
    padding_table,
    property_table,
    release_table,
)
from harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from harness.cli.folders import new_folder, shown, swap_link
from harness.engines import fetch as engines
from harness.engines import record as engine_record
from harness.engines.case import cases_of, load_engine_case
from harness.engines.faults import Verdict
from harness.lockstep.config import CannotRunError, resolve_device
from harness.records.record import device_name
from reports.engine_page import write as write_page

EXIT_CODES = {Verdict.ABSENT: OK, Verdict.PRESENT: FINDING, Verdict.UNDECIDED: CANNOT_RUN}
NEWEST = "newest"
RELEASES = ("0.5.11", "0.5.12", "0.5.13", "0.5.15", NEWEST)
"""The releases that a walk tries by itself."""


def try_engine(options: argparse.Namespace) -> int:
    """Put an engine on trial; write its record and page, show it, and return the exit code."""
    asked = engine_record.faults_of(options.bug)
    device = resolve_device(options.device or "auto")
    engine = engines.find(options.engine)
    console, folder = Console(), new_folder(options.out)
    console.print(f"paritybit on {engine.name}, on {device_name(device)}")
    record = under_test(engine, device, asked, options, folder)
    write_engine(record, folder)
    cases = cases_of(shown(options.engine), record["answer"])
    for name, case in cases.items():
        case.write(folder / "cases" / name)
    swap_link(folder)
    console.print(fault_table(record), property_table(record), padding_table(record))
    for note in notes(record):
        console.print(note, highlight=False)
    names_asked = ", ".join(record["asked"])
    console.print(f"[bold]{record['verdict']}[/]: {names_asked} in {engine.name}")
    for name in cases:
        path = folder.parent / "latest" / "cases" / name
        console.print(f"replay with: paritybit replay {path}", soft_wrap=True, highlight=False)
    console.print(f"page: {folder.parent / 'latest' / 'index.html'}")
    return EXIT_CODES[record["verdict"]]


def replay_engine(path: Path, options: argparse.Namespace) -> int:
    """Replay an engine's case, on the engine it names or on another, and ask for its target."""
    case = load_engine_case(path)
    device, target = case.case.trial.device, case.case.target
    if resolve_device(options.device or device) != device:
        raise CannotRunError(f"{path.name} was found on {device}; it replays there alone")
    engine = engines.find(options.engine or case.engine)
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        log = Path(scratch) / "engine.log"
        answer = engines.trial(engine, device, case.case.seed, log, case)
    leg = answer["legs"][0]
    violated = {name: found for name, found in leg["properties"].items() if found["violated"]}
    for name, found in violated.items():
        print(f"{name}: {found['message']}")
    counts = f"{leg['steps']} steps, {leg['replays']} replays, {leg['padded']} padded"
    present = target in violated
    print(f"{engine.name}: {counts}: {target} {'is violated' if present else 'holds'}")
    return FINDING if present else OK


def under_test(
    engine: engines.Found,
    device: str,
    asked: Sequence[tuple[str, str | None]],
    options: argparse.Namespace,
    folder: Path,
) -> dict[str, Any]:
    """Return the record of an engine's trial, whose log goes to `folder`."""
    answer = engines.trial(engine, device, options.seed, folder / "engine.log")
    command = shlex.join(["paritybit", *map(shown, options.typed)])
    return engine_record.make(engine.name, device, command, asked, answer)


def write_engine(record: dict[str, Any], folder: Path) -> None:
    """Write the record and the page of an engine's trial."""
    engine_record.write(record, folder / "engine.json")
    write_page(record, folder / "index.html")


def run_engine(options: argparse.Namespace) -> int:
    """Fetch a release."""
    print(f"{engines.fetch(options.version).name} is in {shown(str(engines.folder()), keep=2)}")
    return OK


def run_releases(options: argparse.Namespace) -> int:
    """Try releases in order and say where each fault appears and disappears."""
    asked = engine_record.faults_of(options.bug)
    device = resolve_device(options.device or "auto")
    versions = sorted(
        {engines.newest() if name == NEWEST else name for name in options.releases},
        key=engines.in_order,
    )
    console, folder = Console(), new_folder(options.out)
    walked: list[tuple[str, dict[str, Any] | str]] = []
    for version in versions:
        place = folder / version
        place.mkdir()
        try:
            record = under_test(engines.fetch(version), device, asked, options, place)
        except CannotRunError as error:
            walked.append((version, str(error)))
            console.print(f"{version}: {error}", highlight=False)
            continue
        write_engine(record, place)
        walked.append((version, record))
        said = f"{version}: {record['verdict']}, {record['answer']['seconds']:.0f} s"
        console.print(said, highlight=False)
    console.print(release_table(walked))
    for line in changes(walked):
        console.print(line, highlight=False)
    swap_link(folder)
    return OK if any(not isinstance(record, str) for _, record in walked) else CANNOT_RUN
