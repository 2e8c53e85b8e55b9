"""The command line: the one place where harness and reports meet.

Exit codes: 0 as hoped, 1 a finding, 2 a malformed command line or file or a name no
build has, 125 cannot run here, 130 interrupted.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from harness import record as run_record
from harness.bench import bench
from harness.bisect import Bisection, Toggles, hunted_case, likeliest_runner, with_goal
from harness.case import Case, write_case
from harness.corpus import CORPUS, corpus_tasks, make_corpus
from harness.display import clean_table, history_table, matrix, progress, runner_matrix
from harness.explain import explanation
from harness.history import play_history
from harness.lockstep import DeviceLostError, Lockstep, Outcome
from harness.regress import Run, Settings, all_hunts, execute, plan, record
from harness.replay import by_trial, files_of, load_here, replay_alike, vacuous
from harness.soak import soak
from harness.timeline import observe
from harness.trial import CannotRunError, Trial, catalogued, known, resolve_device
from harness.violation import PROPERTIES
from harness.workers import spreading
from reference.config import PRESETS
from reports.comparison import compare_runs
from reports.page import render, render_comparison
from reports.page import write as write_page
from reports.summary import summarise
from reports.terminal import tables
from subjects.bugs import BUGS, missing_inputs, runners_of, unharmed_by
from subjects.runners import RUNNERS

OK, FINDING, MALFORMED, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 125, 130
OUT = Path("reports/out")


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
    replay = command(
        "replay",
        run_replay,
        "Replay a case file: 0 clean, 1 it differs. Several, or a folder of them, are each held"
        " against what they say: 0 all do as they say, 1 one does not",
    )
    replay.add_argument("case", type=Path, nargs="+", help="Case file, or a folder of them")
    toggles = command(
        "bisect", run_bisect, "Find the smallest set of bugs that explains a failing schedule"
    )
    toggles.add_argument("bugs", type=names, help="Bugs to choose from, by comma, of one era")
    toggles.add_argument(
        "--case", type=Path, help="Case file whose schedule is played (else one is hunted)"
    )
    toggles.add_argument("--property", help="Property to explain (the case's, or the first seen)")
    toggles.add_argument("--runner", help="Runner to hunt on (one that the bugs can harm)")
    toggles.add_argument("--seed", type=int, default=0, help="Seed of the hunter (0)")
    toggles.add_argument("--examples", type=count, default=50, help="Schedules to hunt in (50)")
    toggles.add_argument("--out", type=Path, help="Where a case of the smallest set goes")
    past = command(
        "timeline", run_timeline, "Play the upstream history: which properties were red when"
    )
    past.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    past.add_argument("--record", type=Path, help="Where the figures go, as JSON")
    minimal = command("corpus", run_corpus, "Make the regression corpus again, on a CPU, seed 0")
    minimal.add_argument("--bug", type=names, default=(), help="BUG or BUG@RUNNER, by comma (all)")
    minimal.add_argument("--workers", type=count, help="Processes (a core each)")
    minimal.add_argument("--out", type=Path, default=CORPUS, help=f"Folder of cases ({CORPUS})")
    command("list", run_list, "List bugs, runners, presets and properties").add_argument(
        "--json", action="store_true", help="As JSON"
    )
    report = command("report", run_report, "Make the HTML page of a run record again")
    report.add_argument("record", type=Path, nargs="?", default=OUT / "latest" / "run.json")
    report.add_argument("--page", type=Path, help="Where to (index.html beside the record)")
    compare = command("compare", run_compare, "Two run records side by side: 1 if any is new")
    compare.add_argument("before", type=Path, help="Record of the earlier run")
    compare.add_argument("after", type=Path, help="Record of the later run")
    compare.add_argument("--page", type=Path, default=OUT / "compare.html", help="Where to")
    summary = command("summary", run_summary, "Print a run as Markdown, for a CI job's summary")
    summary.add_argument("record", type=Path, nargs="?", default=OUT / "latest" / "run.json")
    steady = command("soak", run_soak, "Count false alarms over many clean steps, and bugs by seed")
    steady.add_argument("--steps", type=count, default=20_000, help="Clean steps (20000)")
    steady.add_argument("--seeds", type=count_or_none, default=20, help="Hunter seeds per bug (20)")
    steady.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    steady.add_argument("--first-seed", type=count_or_none, default=0, help="First clean seed (0)")
    steady.add_argument("--record", type=Path, required=True, help="Where the figures go, as JSON")
    measure = command("bench", run_bench, "Measure differential steps per second")
    measure.add_argument("--record", type=Path, help="Where the figures go, as JSON")
    for each in (regress, replay, toggles, past, steady, measure):
        each.add_argument("--device", help="auto, cpu or cuda")
    return top


def run_regress(options: argparse.Namespace) -> int:
    """Run the main job."""
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
    write_page(render(run_record.load(folder / "run.json")), folder / "index.html")
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
    """Replay one case file, or many, with all properties on."""
    if len(options.case) > 1 or options.case[0].is_dir():
        return replay_many(options)
    path = options.case[0]
    case = load_here(path, options.device)
    lockstep = Lockstep(case.trial, frozenset(PROPERTIES))
    outcome, timeline = observe(lockstep, case.schedule)
    if vacuous(outcome):
        raise CannotRunError(f"{path.name} runs no forward, so it proves nothing")
    for violation in outcome.violations:
        print(f"step {violation.step}: {violation.property}: {violation.told}")
    cause = explanation(lockstep, case.schedule, outcome, timeline, case.sought)
    for sentence in cause["proof"] if cause is not None else ():
        print(f"  {sentence}")
    print(
        f"{outcome.steps} steps, {outcome.replays} replays, {outcome.padded_replays} padded:",
        end=" ",
    )
    print("differs" if outcome.violations else "clean")
    return FINDING if outcome.violations else OK


def replay_many(options: argparse.Namespace) -> int:
    """Replay case files, one line each; hold each against what it says."""
    console, work, skipped, wrong = Console(soft_wrap=True), [], 0, 0
    for path in files_of(options.case):
        try:
            work.append((path.stem, load_here(path, options.device)))
        except CannotRunError as error:
            console.print(f"[yellow]cannot run[/] {escape(str(error))}")
            skipped += 1
    groups = by_trial(work)
    devices = {case.trial.device for _, case in work}
    workers = min(default_workers("cuda" if "cuda" in devices else "cpu"), max(1, len(groups)))
    with Progress(console=console, transient=True) as bar, spreading(workers) as spread:
        line = bar.add_task("replaying", total=len(work))
        for replayed in chain.from_iterable(spread(replay_alike, groups)):
            mark = "[green]as it says[/] " if replayed.as_said else "[bold red]otherwise[/]  "
            console.print(f"{mark} {escape(replayed.name)}: {replayed.told}")
            wrong += not replayed.as_said
            bar.advance(line)
    console.print(
        f"{len(work)} cases: {len(work) - wrong} as they say, {wrong} otherwise,"
        f" {skipped} cannot run here"
    )
    return FINDING if wrong else CANNOT_RUN if skipped else OK


def run_bisect(options: argparse.Namespace) -> int:
    """Find the smallest set of bugs that explains a failing schedule."""
    if not options.bugs:
        raise ValueError("there is at least one bug to choose from (see paritybit bisect --help)")
    for name in options.bugs:
        known("bug", name, BUGS)
    if options.property is not None:
        known("property", options.property, PROPERTIES)
    if options.case is not None and options.runner is not None:
        raise ValueError("a case brings its own runner: name one of the two")
    if options.out is not None:
        run_record.require_writable(options.out)
    console = Console(soft_wrap=True)
    case = with_goal(case_to_bisect(options))
    if case is None:
        console.print("clean with all of them on: nothing to explain")
        return OK
    console.print(f"{case.sought} on {case.trial.runner}, {len(case.schedule.steps)} steps")

    def told(toggles: Toggles, outcome: Outcome) -> None:
        red = case.sought in outcome.violated
        seen = ", ".join(each for each in PROPERTIES if each in outcome.violated) or "nothing"
        mark = "[bold red]red[/]  " if red else "[green]green[/]"
        console.print(f"{mark} {' + '.join(toggles) or 'no bug'}: {seen}")

    explained = Bisection(case, told).explain()
    if explained is None:
        console.print("clean with all of them on: nothing to explain")
        return OK
    console.print(f"smallest set: [bold]{' + '.join(explained.trial.bugs) or 'none of them'}[/]")
    if options.out is not None:
        write_case(explained, options.out)
    return FINDING


def case_to_bisect(options: argparse.Namespace) -> Case | None:
    """Return the case named, with the bugs asked for, or one hunted with all of them on."""
    if options.case is not None:
        case = load_here(options.case, options.device)
        trial = replace(case.trial, bugs=catalogued(options.bugs))
        return replace(case, trial=trial, sought=options.property or case.sought)
    runner = options.runner or likeliest_runner(options.bugs)
    known("runner", runner, RUNNERS)
    trial = Trial(runner, device=resolve_device(options.device or "auto"))
    trial = trial.with_bug(*options.bugs)
    return hunted_case(trial, options.property, options.seed, options.examples)


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
    print(f"{figures['told']}; {figures['seconds']:.0f} s")
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
    with whole(options.record):
        text = render(data)
    put(text, page)
    print(page)
    return OK


def run_compare(options: argparse.Namespace) -> int:
    """Show two run records side by side, on the terminal and as a page."""
    before, after = run_record.load(options.before), run_record.load(options.after)
    with whole(options.before, options.after):
        comparison = compare_runs(before, after)
        text = render_comparison(before, after, comparison)
    run_record.require_writable(options.page)
    put(text, options.page)
    Console().print(*tables(comparison), comparison.told, f"page: {options.page}", sep="\n")
    return FINDING if comparison.alarming else OK


def run_summary(options: argparse.Namespace) -> int:
    """Print a run record as Markdown."""
    data = run_record.load(options.record)
    with whole(options.record):
        print(summarise(data), end="")
    return OK


@contextmanager
def whole(*records: Path) -> Iterator[None]:
    """Tell in one sentence, as ValueError, of a record that lacks something."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, TemplateError) as error:
        what = f"{type(error).__name__}: {error}"
        names = " or ".join(each.name for each in records)
        raise ValueError(f"{names} is not a whole run record: {what}") from error


def put(text: str, page: Path) -> None:
    """Write a page. Raises ValueError where it cannot be written."""
    try:
        write_page(text, page)
    except OSError as error:
        raise ValueError(f"page {page} cannot be written: {error.strerror}") from error


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
