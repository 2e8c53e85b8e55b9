"""Released engines on trial: one of them, or all in order."""

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paritybit.harness.cli.engines.display import (
    Telling,
    changes,
    fault_table,
    notes,
    padding_table,
    property_table,
    release_table,
    runner_table,
)
from paritybit.harness.cli.engines.matrix import write_matrix
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, OK
from paritybit.harness.cli.folders import run_folder, shown, swap_link
from paritybit.harness.cli.pages import previous_of, print_previous
from paritybit.harness.cli.spreading import print_run_again
from paritybit.harness.cli.words.values import EVERY, NEWEST
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines import record as engine_record
from paritybit.harness.engines.adapters.packages import PACKAGES, SGLANG, Package
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.case import EngineCase, cases_of, engine_case_of
from paritybit.harness.engines.explained.record import read, recorded
from paritybit.harness.engines.faults import Verdict
from paritybit.harness.engines.playlist import EXAMPLES
from paritybit.harness.engines.trial import Answer, Settings, play_case, to_json, try_all
from paritybit.harness.errors import CannotRunError, MalformedError, cut
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.machine.workers import workers_for
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.record import device_name, require_writable
from paritybit.harness.records.schema import EngineCounterexample
from paritybit.reports.compared.previous import Previous
from paritybit.reports.engine_page import render
from rich.console import Console

EXIT_CODES = {Verdict.ABSENT: OK, Verdict.PRESENT: FINDING, Verdict.UNDECIDED: CANNOT_RUN}


def try_engine(options: argparse.Namespace) -> int:
    """Put an engine on trial; write its record and page, show it, and return the exit code."""
    faults = ADAPTERS[engines.package_of(options.engine).name].faults
    asked = engine_record.faults_of(options.bug, faults)
    settings = settings_of(options, asked)
    engine = engines.find(options.engine)
    console = Console()
    with run_folder(options.out) as folder:
        console.print(f"paritybit: test {engine.name} on {device_name(settings.device)}")
        console.print("A trial plays one runner on one model (docs/glossary.md).")
        answer = answer_of(engine, settings, folder, console)
        with heard_at_the_end():
            return finish(console, engine, settings, asked, options, answer, folder)


def finish(
    console: Console,
    engine: engines.Found,
    settings: Settings,
    asked: engine_record.Asked,
    options: argparse.Namespace,
    answer: Answer,
    folder: Path,
) -> int:
    """Show the trial of an engine; write its cases, record and page; return the exit code."""
    cases = cases_of(shown(options.engine), answer.cases)
    found = recorded(cases, answer.counterexamples, shown(str(folder / "cases"), keep=3))
    record = record_of(engine, settings, asked, options, answer, found)
    console.print(fault_table(record), property_table(record), padding_table(record))
    for note in notes(record):
        console.print(note, highlight=False)
    for name in cases:
        command = replay_of(folder / "cases" / name, options.engine)
        console.print(f"to replay: {command}", soft_wrap=True, highlight=False)
    print_run_again(settings.workers)
    console.print(f"page: {folder / 'index.html'}", soft_wrap=True, highlight=False)
    console.print(f"[bold]{record['verdict']}[/]: {record['message']}", highlight=False)
    for name, case in cases.items():
        case.write(folder / "cases" / name)
    print_previous(console, write_engine(record, folder))
    swap_link(folder)
    return INTERRUPTED if record["answer"]["interrupted"] else EXIT_CODES[record["verdict"]]


def settings_of(options: argparse.Namespace, asked: engine_record.Asked) -> Settings:
    """Return what a trial is to try: the runners asked for, or those of the faults asked about."""
    on_runners = tuple(dict.fromkeys(runner for _, runner in asked if runner is not None))
    every = any(runner is None for _, runner in asked)
    device = resolve_device(options.device or "auto")
    return Settings(
        device=device,
        seed=options.seed,
        runners=options.runner or (() if every else on_runners),
        presets=options.preset,
        examples=options.examples or EXAMPLES,
        workers=workers_for(device, options.workers),
    )


def replay_engine(data: Any, name: str, options: argparse.Namespace) -> int:
    """Replay an engine's case, of a file's JSON data, as a trial of its own."""
    case = case_here(data, name, options)
    engine = engines.find(options.engine)
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        answer = to_json(play_case(engine, case, Path(scratch) / "engine.log"))
    for leg in answer["legs"]:
        for rule, found in leg["properties"].items():
            if found["violated"]:
                print(f"{rule}: {found['message']}")
        counts = f"{leg['steps']} steps, {leg['replays']} replays ({leg['padded']} padded)"
        print(f"{engine.name}: {counts}")
    if answer["interrupted"]:
        raise KeyboardInterrupt
    if engine_record.counted(answer, ()):
        print("differs")
        return FINDING
    if answer["undecided"]:
        raise CannotRunError(f"{engine.name}: {answer['undecided'][0]['reason']}")
    print("clean")
    return OK


def replay_of(path: Path, engine: str) -> str:
    """Return the command that replays a case of an engine on it."""
    return shlex.join(["paritybit", "replay", str(path), "--engine", engine])


def case_here(data: Any, name: str, options: argparse.Namespace) -> EngineCase:
    """Return an engine's case of a file's JSON data, to be played on the engine asked for.

    Raises MalformedError where none is asked for: a file that came from elsewhere decides no
    code. Raises CannotRunError for a case of another device than asked for.
    """
    case = engine_case_of(data, name)
    if options.engine is None:
        raise MalformedError(
            f"{name} was recorded on {cut(case.engine)}, and a case cannot choose which "
            "code runs: name the engine with --engine NAME==VERSION or --engine FOLDER"
        )
    found_on = case.case.trial.device
    if resolve_device(options.device or found_on) != found_on:
        raise CannotRunError(f"{name} was recorded on {found_on} and can only be replayed there")
    return case


def answer_of(engine: engines.Found, settings: Settings, folder: Path, console: Console) -> Answer:
    """Try an engine, say how it comes along, and return what was found; its log is in `folder`."""
    return try_all(engine, settings, folder / "engine.log", Telling(console))


def record_of(
    engine: engines.Found,
    settings: Settings,
    asked: engine_record.Asked,
    options: argparse.Namespace,
    answer: Answer,
    counterexamples: Sequence[EngineCounterexample] = (),
) -> dict[str, Any]:
    """Return the record of an engine's trial."""
    command = shlex.join(["paritybit", *map(shown, options.typed)])
    said, faults = to_json(answer), ADAPTERS[engine.engine].faults
    return engine_record.make(
        engine.name,
        settings.device,
        command,
        asked,
        said,
        counterexamples,
        faults,
        settings.workers,
    )


def write_engine(record: dict[str, Any], folder: Path) -> Previous | None:
    """Write the record and the page of an engine's trial; return the trial before it, if any."""
    engine_record.write(record, folder / "engine.json")
    previous = previous_of(folder / "engine.json", record)
    write_whole(folder / "index.html", render(record, read(record), previous))
    return previous


def run_engine(options: argparse.Namespace) -> int:
    """Fetch a release, which a version alone names if it is one of sglang."""
    found = engines.fetch(*engines.release_of(options.version))
    print(f"{found.name} is in {engines.folder()}")
    return OK


def versions_of(names: Sequence[str], package: Package = SGLANG) -> list[str]:
    """Return the releases named of an engine, in order.

    Raises CannotRunError where the index must be asked and does not answer, MalformedError for
    what is no release's version.
    """
    for name in names:
        if name not in {EVERY, NEWEST}:
            engines.require_release(name, package)
    found = set[str]()
    for name in names:
        if name == EVERY:
            found.update(engines.released(package.oldest, package))
        else:
            found.add(engines.newest(package) if name == NEWEST else name)
    return sorted(found, key=engines.in_order)


def tried(
    engine: engines.Found,
    settings: Settings,
    asked: engine_record.Asked,
    options: argparse.Namespace,
    place: Path,
    console: Console,
) -> dict[str, Any]:
    """Try one release of a walk; make its folder, record and page; return the record."""
    place.mkdir()
    answer = answer_of(engine, settings, place, console)
    with heard_at_the_end():
        record = record_of(engine, settings, asked, options, answer)
        console.print(f"{place.name}: {record['verdict']}: {record['message']}", highlight=False)
        write_engine(record, place)
    return record


def run_releases(options: argparse.Namespace) -> int:
    """Try releases in order and say where each fault appears and disappears.

    A release that cannot be had, or does not exist, costs its own column.
    """
    package = PACKAGES[options.engine]
    asked = engine_record.faults_of(options.bug, ADAPTERS[package.name].faults)
    settings = settings_of(options, asked)
    versions = versions_of(options.releases or (*package.walked, NEWEST), package)
    if options.table is not None:
        require_writable(options.table)
    console = Console()
    walked: list[tuple[str, dict[str, Any] | str]] = []
    with run_folder(options.out) as folder:
        for version in versions:
            try:
                engine = engines.fetch(version, package)
            except (CannotRunError, MalformedError) as error:
                walked.append((version, str(error)))
                console.print(f"{version}: {error}", highlight=False)
                continue
            record = tried(engine, settings, asked, options, folder / version, console)
            walked.append((version, record))
            if record["answer"]["interrupted"]:
                break
    console.print(runner_table(walked, package, settings.runners), release_table(walked))
    for line in changes(walked):
        console.print(line, highlight=False)
    console.print(f"records and pages: {folder}", highlight=False, soft_wrap=True)
    if options.table is not None:
        write_matrix(options.table, walked, settings.device, package, settings.runners)
    records = [record for _, record in walked if not isinstance(record, str)]
    if any(record["answer"]["interrupted"] for record in records):
        return INTERRUPTED
    whole = len(records) == len(walked) and all(
        record["verdict"] != Verdict.UNDECIDED for record in records
    )
    return OK if whole else CANNOT_RUN
