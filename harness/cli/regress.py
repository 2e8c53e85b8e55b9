"""The command `regress`."""

from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.campaigns.plan import RunConfig, hunts_of
from paritybit.harness.campaigns.regress import run_tests
from paritybit.harness.campaigns.run import Run, cases_of, record
from paritybit.harness.cli.display import print_errors
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, OK
from paritybit.harness.cli.folders import command_of, run_folder, swap_link
from paritybit.harness.errors import CannotRunError, report_error, require_known
from paritybit.harness.lockstep.config import resolve_device
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.records.codec import save
from paritybit.harness.records.environment import device_name
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.schema import Status
from paritybit.reference.config import PRESETS
from paritybit.reports import terminal
from paritybit.reports.annotations import annotations, on_github
from paritybit.reports.laboratory import report_of
from paritybit.reports.page import render
from rich.console import Console


def run_regress(
    *,
    bugs: Sequence[str],
    runners: Sequence[str],
    models: Sequence[str],
    seed: int,
    device: str,
    out: Path,
    pytest: Sequence[str],
    words: Sequence[str],
) -> int:
    """Test the built-in engine without a bug, then with each bug.

    `pytest` are further options for pytest, and `words` are the command line.
    """
    for name in models:
        require_known("model", name, PRESETS)
    hunts = hunts_of(bugs, runners)
    device = resolve_device(device)
    settings = RunConfig(device, hunts, tuple(models) or tuple(PRESETS), seed)
    run = Run(settings, command_of(words))
    with run_folder(out) as folder:
        console = Console()
        console.print(f"paritybit regress on {device_name(settings.device)}")
        run_tests(run, console, out.resolve() / "pytest-cache", pytest)
        with heard_at_the_end():
            return finish(console, run, folder)


def finish(console: Console, run: Run, folder: Path) -> int:
    """Print the results of a run, write cases, record and page, and return the exit code."""
    data = record(run)
    report = report_of(data)
    console.print(*terminal.tables(report), sep="\n")
    lines = [*terminal.lines(report, folder), (f"{data.verdict}: {data.message}", "bold")]
    lines += [(line, None) for line in annotations(report)] if on_github() else []
    for line, style in lines:
        console.print(line, style=style, soft_wrap=True, highlight=False, markup=False)
    errors = [result.error for result in run.results if result.status is Status.FAILED]
    print_errors(error for error in errors if error is not None)
    if not run.tasks:
        report_error("no trial or hunt was selected", CANNOT_RUN)
    code = {"green": OK, "red": FINDING, "interrupted": INTERRUPTED}[data.verdict]
    if code == FINDING and run.undecided:
        code = CANNOT_RUN
    try:
        for name, case in cases_of(data).items():
            save(case, folder / "cases" / name)
        save(data, folder / "run.json")
        write_whole(folder / "index.html", render(report))
        swap_link(folder)
    except CannotRunError as error:
        return report_error(error, FINDING if code == FINDING else CANNOT_RUN)
    console.print(f"{data.seconds:.0f} s; page: {folder / 'index.html'}", soft_wrap=True)
    return code
