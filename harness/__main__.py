"""The command line: the one place where harness and reports meet.

Exit codes: 0 as hoped, 1 a finding, 2 a malformed command line or file or a name no
build has, 125 cannot run here, 130 interrupted.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from rich.console import Console

from harness import engine_record, engines
from harness import record as run_record
from harness.bench import bench
from harness.case import load_case
from harness.display import clean_table, matrix, progress, runner_matrix
from harness.engine_display import changes, fault_table, notes, padding_table, release_table
from harness.engine_faults import Verdict
from harness.lockstep import DeviceLostError, Lockstep
from harness.regress import Run, Settings, all_hunts, execute, plan, record
from harness.soak import soak
from harness.timeline import observe
from harness.trial import (
    CannotRunError,
    UnknownNameError,
    known,
    require_cuda,
    resolve_device,
)
from harness.violation import PROPERTIES
from reference.config import PRESETS
from reports.engine_page import write as write_engine_page
from reports.page import write as write_page
from subjects.bugs import BUGS, missing_inputs, runners_of, unharmed_by
from subjects.runners import RUNNERS

OK, FINDING, MALFORMED, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 125, 130
EXIT_CODES = {Verdict.ABSENT: OK, Verdict.PRESENT: FINDING, Verdict.UNDECIDED: CANNOT_RUN}
OUT = Path("reports/out")
NEWEST = "newest"
RELEASES = ("0.5.11", "0.5.12", "0.5.13", "0.5.15", NEWEST)
"""The releases that a walk tries by itself."""


class Parser(argparse.ArgumentParser):
    """A parser that tells of a wrong command line in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with 2."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def count(text: str, least: int = 1) -> int:
    """Return a whole number of at least `least`, or raise ArgumentTypeError."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0, or raise ArgumentTypeError."""
    return count(text, least=0)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = Parser(
        prog="paritybit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], told: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=told, description=told)
        sub.set_defaults(run=run)
        return sub

    regress = command("regress", run_regress, "Clean baseline, then hunt every bug; write a page")
    regress.add_argument(
        "--bug",
        type=names,
        default=(),
        help="Bugs to hunt, by comma: BUG or BUG@RUNNER (all)",
    )
    regress.add_argument(
        "--runner", type=names, default=(), help="Runners on trial, by comma (all)"
    )
    regress.add_argument("--preset", type=names, default=(), help="Models, by comma (all)")
    regress.add_argument("--seed", type=int, default=0, help="Seed of the hunter (0)")
    regress.add_argument("--examples", type=count, default=50, help="Schedules per hunt (50)")
    regress.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    regress.add_argument("--out", type=Path, default=OUT, help=f"Folder of run folders ({OUT})")
    regress.add_argument(
        "--engine",
        metavar="ENGINE",
        help="Try a released engine, sglang==VERSION, or the source tree in a folder, instead",
    )
    engine = command("engine", run_engine, "Fetch a release of the engine, apart")
    engine.add_argument("version", help="Release, as 0.5.12")
    walk = command("bisect-releases", run_releases, "Say which releases have which fault")
    walk.add_argument("--bug", type=names, default=(), help="Faults asked about, by comma (all)")
    walk.add_argument("--releases", type=names, default=RELEASES, help="Releases, by comma")
    walk.add_argument("--seed", type=int, default=0, help="Seed of the schedules (0)")
    walk.add_argument("--out", type=Path, default=OUT, help=f"Folder of run folders ({OUT})")
    replay = command("replay", run_replay, "Replay a case file: 0 clean, 1 it differs")
    replay.add_argument("case", type=Path, help="Case file")
    listing = command("list", run_list, "List bugs, runners, presets and properties")
    listing.add_argument("--json", action="store_true", help="As JSON")
    report = command("report", run_report, "Make the HTML page of a run record again")
    report.add_argument("record", type=Path, nargs="?", default=OUT / "latest" / "run.json")
    report.add_argument("--page", type=Path, help="Where to (index.html beside the record)")
    steady = command("soak", run_soak, "Count false alarms over many clean steps, and bugs by seed")
    steady.add_argument("--steps", type=count, default=20_000, help="Clean steps (20000)")
    steady.add_argument("--seeds", type=count_or_none, default=20, help="Hunter seeds per bug (20)")
    steady.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    steady.add_argument("--first-seed", type=count_or_none, default=0, help="First clean seed (0)")
    steady.add_argument("--record", type=Path, required=True, help="Where the figures go, as JSON")
    measure = command("bench", run_bench, "Measure differential steps per second")
    measure.add_argument("--record", type=Path, help="Where the figures go, as JSON")
    for each in (regress, walk, replay, steady, measure):
        each.add_argument("--device", help="auto, cpu or cuda")
    return top


def run_regress(options: argparse.Namespace) -> int:
    """Run the main job."""
    if options.engine is not None:
        return try_engine(options)
    for name in options.preset:
        known("preset", name, PRESETS)
    settings = Settings(
        device=resolve_device(options.device or "auto"),
        hunts=hunts_of(options.bug, options.runner),
        presets=options.preset or tuple(PRESETS),
        seed=options.seed,
        examples=options.examples,
        command=shlex.join(["paritybit", *map(shown, options.typed)]),
    )
    folder = new_folder(options.out)
    console, run, tasks = Console(), Run(settings), plan(settings)
    workers = options.workers or default_workers(settings.device)
    console.print(f"paritybit regress on {run_record.device_name(settings.device)}")
    try:
        with progress(console, len(tasks)) as advance:

            def on_result(result: Any) -> None:
                run.results.append(result)
                advance(result)

            execute(tasks, min(workers, len(tasks)), on_result)
    except KeyboardInterrupt:
        run.interrupted = True
    return finish(console, run, folder)


def try_engine(options: argparse.Namespace) -> int:
    """Put an engine on trial; write its record and page, show it, and return the exit code."""
    asked = engine_record.faults_of(options.bug)
    device = resolve_device(options.device or "auto")
    engine = engines.find(options.engine)
    console, folder = Console(), new_folder(options.out)
    console.print(f"paritybit on {engine.name}, on {run_record.device_name(device)}")
    record = tried(engine, device, asked, options, folder)
    write_engine(record, folder)
    swap_link(folder)
    console.print(fault_table(record), padding_table(record))
    for note in notes(record):
        console.print(note, highlight=False)
    names_asked = ", ".join(record["asked"])
    console.print(f"[bold]{record['verdict']}[/]: {names_asked} in {engine.name}")
    console.print(f"page: {folder.parent / 'latest' / 'index.html'}")
    return EXIT_CODES[record["verdict"]]


def tried(
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
    write_engine_page(record, folder / "index.html")


def run_engine(options: argparse.Namespace) -> int:
    """Fetch a release."""
    print(f"{engines.fetch(options.version).name} is in {shown(str(engines.folder()), keep=2)}")
    return OK


def run_releases(options: argparse.Namespace) -> int:
    """Try releases in order and say where each fault appears and disappears."""
    asked = engine_record.faults_of(options.bug)
    device = resolve_device(options.device or "auto")
    versions = sorted(
        {engines.newest() if each == NEWEST else each for each in options.releases},
        key=engines.in_order,
    )
    console, folder = Console(), new_folder(options.out)
    walked: list[tuple[str, dict[str, Any] | str]] = []
    for version in versions:
        place = folder / version
        place.mkdir()
        try:
            record = tried(engines.fetch(version), device, asked, options, place)
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
    return OK if any(not isinstance(each, str) for _, each in walked) else CANNOT_RUN


def hunts_of(bugs: Sequence[str], runners: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the (bug, runner) asked for: a bug without a runner is tried on all it can harm.

    Without bugs, all there are. Raises UnknownNameError for a bug or a runner that is not
    known, ValueError for a bug on a runner that lacks what it is about.
    """
    for runner in runners:
        known("runner", runner, RUNNERS)
    if not bugs:
        return all_hunts(runners or RUNNERS)
    found: list[tuple[str, str]] = []
    for each in bugs:
        name, _, runner = each.partition("@")
        known("bug", name, BUGS)
        if runner:
            known("runner", runner, RUNNERS)
        wanted = [runner] if runner else runners or runners_of(BUGS[name]) or list(RUNNERS)
        lacking = [one for one in wanted if missing_inputs(BUGS[name], one)]
        if lacking:
            reason = unharmed_by(BUGS[name], lacking[0])
            valid = ", ".join(one for one in RUNNERS if not missing_inputs(BUGS[name], one))
            raise ValueError(
                f"{name} cannot be switched on in {lacking[0]}: {reason}; valid: {valid}"
            )
        found += [(name, one) for one in wanted]
    return tuple(dict.fromkeys(found))


def default_workers(device: str) -> int:
    """Return one process on cuda, where processes take turns, or one per core."""
    return 1 if device == "cuda" else os.cpu_count() or 1


def finish(console: Console, run: Run, folder: Path) -> int:
    """Write cases, record and page of a run, show them, and return the exit code."""
    data = record(run, folder / "cases", shown(str(folder.parent / "latest" / "cases"), keep=3))
    run_record.write(data, folder / "run.json")
    write_page(run_record.load(folder / "run.json"), folder / "index.html")
    swap_link(folder)
    console.print(clean_table(data), matrix(data), runner_matrix(data))
    console.print(f"[bold]{data['verdict']}[/]: {data['told']}")
    console.print(f"{data['seconds']:.0f} s; page: {folder.parent / 'latest' / 'index.html'}")
    return {"green": OK, "red": FINDING, "interrupted": INTERRUPTED}[data["verdict"]]


def shown(word: str, keep: int = 1) -> str:
    """Return a word of a command line as a record may hold it: with no absolute path.

    A path below the current folder becomes relative to it; of any other, the last
    `keep` parts stay.
    """
    if word.startswith("--") and "=" in word:
        option, _, value = word.partition("=")
        return f"{option}={shown(value, keep)}"
    path, here = Path(word), Path.cwd()
    if not path.is_absolute():
        return word
    return str(path.relative_to(here) if path.is_relative_to(here) else Path(*path.parts[-keep:]))


def new_folder(out: Path) -> Path:
    """Make a folder for this run under `out`. Raises ValueError where it cannot be written."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = next(
        each
        for each in (out / f"{stamp}{f'-{n}' if n else ''}Z" for n in range(1000))
        if not each.exists()
    )
    try:
        (folder / "cases").mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"report folder {out} cannot be written: {error.strerror}") from error
    return folder


def swap_link(folder: Path) -> None:
    """Point the link `latest` beside `folder` at it, in one move."""
    link = folder.parent / "latest"
    fresh = folder.parent / f".latest-{folder.name}"
    fresh.symlink_to(folder.name)
    fresh.replace(link)


def run_replay(options: argparse.Namespace) -> int:
    """Replay a case file with all properties on."""
    try:
        case = load_case(options.case)
    except UnknownNameError as error:
        raise CannotRunError(f"{options.case.name} names what this build lacks: {error}") from error
    if options.device is not None and resolve_device(options.device) != case.trial.device:
        raise CannotRunError(
            f"{options.case.name} was found on {case.trial.device}; it replays there alone"
        )
    if case.trial.device == "cuda":
        require_cuda()
    outcome, _ = observe(Lockstep(case.trial, frozenset(PROPERTIES)), case.schedule)
    if not outcome.steps:
        raise CannotRunError(f"{options.case.name} runs no forward, so it proves nothing")
    for violation in outcome.violations:
        print(f"step {violation.step}: {violation.property}: {violation.told}")
    print(
        f"{outcome.steps} steps, {outcome.replays} replays, {outcome.padded_replays} padded:",
        end=" ",
    )
    print("differs" if outcome.violations else "clean")
    return FINDING if outcome.violations else OK


def run_list(options: argparse.Namespace) -> int:
    """List every name of this build."""
    listed: dict[str, dict[str, str]] = {
        "bugs": {name: bug.mechanism for name, bug in BUGS.items()},
        "runners": {
            name: (runner.__doc__ or "").splitlines()[0] for name, runner in RUNNERS.items()
        },
        "bugs on runners": {
            f"{name}@{runner}": told(unharmed_by(bug, runner), bug.caught_by)
            for name, bug in BUGS.items()
            for runner in RUNNERS
        },
        "presets": {name: preset.source for name, preset in PRESETS.items()},
        "properties": PROPERTIES,
    }
    if options.json:
        print(json.dumps(listed, indent=1))
        return OK
    for kind, entries in listed.items():
        print(kind)
        for name, sentence in entries.items():
            print(f"  {name:40} {sentence}")
    return OK


def told(unharmed: str | None, caught_by: str | None) -> str:
    """Say what a bug does to a runner."""
    return f"caught by {caught_by}" if unharmed is None else f"cannot harm it: {unharmed}"


def run_report(options: argparse.Namespace) -> int:
    """Make the page of a run record."""
    page = options.page or options.record.parent / "index.html"
    data = run_record.load(options.record)
    try:
        write_page(data, page)
    except OSError as error:
        raise ValueError(f"page {page} cannot be written: {error.strerror}") from error
    except (LookupError, TypeError, AttributeError, ValueError, TemplateError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{options.record.name} is not a whole run record: {what}") from error
    print(page)
    return OK


def run_soak(options: argparse.Namespace) -> int:
    """Play many clean steps and many seeds of every bug; write the figures."""
    device = resolve_device(options.device or "auto")
    run_record.require_writable(options.record)
    workers = options.workers or default_workers(device)
    figures = soak(device, options.steps, range(options.seeds), options.first_seed, workers)
    run_record.write_evidence("soak", device, figures, options.record)
    print(figures["told"])
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are told in one sentence."""
    try:
        options = parser().parse_args(arguments)
        options.typed = sys.argv[1:] if arguments is None else arguments
        code: int = options.run(options)
    except CannotRunError as error:
        print(f"paritybit: {error}", file=sys.stderr)
        return CANNOT_RUN
    except (ValueError, OSError) as error:
        print(f"paritybit: {error}", file=sys.stderr)
        return MALFORMED
    except DeviceLostError as error:
        print(f"paritybit: the device was lost: {error}", file=sys.stderr)
        return FINDING
    except KeyboardInterrupt:
        print("paritybit: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
