"""The command `regress`."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.campaigns.regress import (
    Run,
    RunConfig,
    all_hunts,
    first_of,
    plan,
    run_tasks,
)
from paritybit.harness.campaigns.run_record import CASES, cases_of, record
from paritybit.harness.campaigns.task import Result
from paritybit.harness.checks.expectations import affected_runners, unaffected_reason
from paritybit.harness.cli.display import print_errors, print_unexplained, progress
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, OK
from paritybit.harness.cli.folders import run_folder, shown, swap_link
from paritybit.harness.errors import CannotRunError, MalformedError, known, refused
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.machine.workers import workers_for
from paritybit.harness.records import record as run_record
from paritybit.harness.records.case import write_case
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.schema import Record, Status
from paritybit.reference.config import PRESETS
from paritybit.reports import terminal
from paritybit.reports.annotations import annotations, on_github
from paritybit.reports.laboratory import report_of
from paritybit.reports.page import render
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS
from rich.console import Console

WORDS = (
    "A trial plays one runner on one model. A hunt is a trial with one bug switched on. "
    "docs/glossary.md defines all terms."
)
"""Explains the words in the tables that follow."""

EXAMPLES = 50
"""The default number of schedules per hunt."""


def run_regress(
    *,
    bugs: Sequence[str],
    runners: Sequence[str],
    presets: Sequence[str],
    seed: int,
    examples: int | None,
    workers: int | None,
    device: str,
    strict: bool,
    out: Path,
    words: Sequence[str],
) -> int:
    """Test the built-in engine without a bug, then with each bug. `words` are the command line."""
    for name in presets:
        known("preset", name, PRESETS)
    hunts = hunts_of(bugs, runners)
    device = resolve_device(device)
    settings = RunConfig(
        device=device,
        hunts=hunts,
        presets=tuple(presets) or tuple(PRESETS),
        seed=seed,
        examples=examples or EXAMPLES,
        command=shlex.join(["paritybit", *map(shown, words)]),
        workers=workers_for(device, workers),
    )
    with run_folder(out) as folder:
        return played(settings, folder, strict=strict)


def played(settings: RunConfig, folder: Path, *, strict: bool = False) -> int:
    """Run the tasks, write results to a folder, and return the exit code."""
    console, run, tasks = Console(), Run(settings), plan(settings)
    console.print(f"paritybit regress on {run_record.device_name(settings.device)}")
    console.print(WORDS)
    try:
        with progress(console, len(tasks)) as advance:

            def on_result(result: Result) -> None:
                run.results.append(result)
                advance(result)

            run_tasks(tasks, settings.workers.at_most(len(tasks)), on_result)
    except KeyboardInterrupt:
        run.interrupted = True
    with heard_at_the_end():
        return finish(console, run, folder, strict=strict)


def hunts_of(bugs: Sequence[str], runners: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the requested pairs (bug, runner). A bug without a runner gets all runners it affects.

    Without bugs, return all possible pairs. Raises UnknownNameError for an unknown bug or runner,
    and ValueError for a bug that cannot be switched on in the runner.
    """
    for runner in runners:
        known("runner", runner, RUNNERS)
    if not bugs:
        return all_hunts(runners or RUNNERS)
    found: list[tuple[str, str]] = []
    for asked in bugs:
        name, _, runner = asked.partition("@")
        known("bug", name, BUGS)
        if runner:
            known("runner", runner, RUNNERS)
        wanted = [runner] if runner else runners or affected_runners(BUGS[name]) or list(RUNNERS)
        unfit = [one for one in wanted if lacking(BUGS[name], one)]
        if unfit:
            reason = unaffected_reason(BUGS[name], unfit[0])
            valid = ", ".join(one for one in RUNNERS if not lacking(BUGS[name], one))
            raise MalformedError(
                f"{name} cannot be switched on in {unfit[0]}: {reason}; valid: {valid}"
            )
        found += [(name, one) for one in wanted]
    return tuple(dict.fromkeys(found))


def finish(console: Console, run: Run, folder: Path, *, strict: bool = False) -> int:
    """Print the results of a run, write cases, record and page, and return the exit code.

    With `strict`, a green run that did not reach all states of a full run has no verdict.
    """
    data = record(run, shown(str(folder / CASES), keep=3))
    report = report_of(data)
    console.print(*terminal.tables(report))
    lines = [*terminal.lines(report, folder), (f"{data.verdict}: {data.message}", "bold")]
    lines += [(note, None) for note in report.notes]
    lines += [(line, None) for line in annotations(report)] if on_github() else []
    for line, style in lines:
        console.print(line, style=style, soft_wrap=True, highlight=False, markup=False)
    errors = [result.error for result in run.results if result.status is Status.FAILED]
    print_errors(error for error in errors if error is not None)
    print_unexplained(run.results)
    code = code_of_run(run, data, strict=strict)
    try:
        for name, case in cases_of(data).items():
            write_case(case, folder / CASES / name)
        run_record.write(data, folder / "run.json")
        write_whole(folder / "index.html", render(report))
        swap_link(folder)
    except CannotRunError as error:
        return refused(error, FINDING if code == FINDING else CANNOT_RUN)
    console.print(f"{data.seconds:.0f} s; page: {folder / 'index.html'}", soft_wrap=True)
    return code


def code_of_run(run: Run, data: Record, *, strict: bool) -> int:
    """Return the exit code for the record of a run."""
    if data.verdict == "green" and strict and data.scope.unreached:
        unreached = first_of(data.scope.unreached)
        return refused(f"--strict: this run never reached {unreached}", CANNOT_RUN)
    if data.verdict == "red" and run.undecided:
        return CANNOT_RUN
    return {"green": OK, "red": FINDING, "interrupted": INTERRUPTED}[data.verdict]
