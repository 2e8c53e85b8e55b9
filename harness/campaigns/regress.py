"""Runs clean trials and hunts with pytest, and collects their results.

The tests are in `test_trials`. pytest-xdist runs them in worker processes. A worker that crashes or
takes too long is replaced, and its test fails.
"""

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from paritybit.harness.campaigns.plan import plan
from paritybit.harness.campaigns.plugin import run_config
from paritybit.harness.campaigns.run import Run
from paritybit.harness.campaigns.task import without_result
from paritybit.harness.records.schema import BugRow, Status, TrialRow
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

FOLDER = Path(__file__).parent

PLUGINS = "xdist.plugin", "_hypothesis_pytestplugin", "paritybit.harness.campaigns.plugin"
"""The plugins of a run. Other installed plugins are not loaded."""

ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
"""Variables that hide the settings of the user's own pytest."""

SECONDS = 1800
"""The time limit of a test. It is many times the time on a slow machine."""

RESTARTS = 20


def run_tests(run: Run, console: Console, cache: Path, options: Sequence[str] = ()) -> None:
    """Run the tests of a run in this process, with a progress bar. The results go to `run`.

    `options` are further options for pytest, and `cache` is the folder of its cache.
    """
    reporter = Reporter(run, console)
    with patch.dict(os.environ, ENVIRONMENT), reporter.bar:
        words = [str(FOLDER / "test_trials.py"), *options_of(run, cache), *options]
        code = pytest.main(words, plugins=[reporter])
    ended = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
    run.broken |= code not in ended


def options_of(run: Run, cache: Path) -> list[str]:
    """Return the options of pytest for a run."""
    settings = run.settings
    return [
        *("-c", str(FOLDER / "pytest.ini"), "--rootdir", str(FOLDER), "--noconftest"),
        *(word for plugin in PLUGINS for word in ("-p", plugin)),
        *("-n", "auto", "--maxprocesses", str(len(run.tasks))),
        *("--max-worker-restart", str(RESTARTS)),
        *("-o", f"cache_dir={cache}", "-o", f"faulthandler_timeout={SECONDS}"),
        *("-o", "faulthandler_exit_on_timeout=true"),
        *("--device", settings.device, "--model", ",".join(settings.presets)),
        *("--hunt", ",".join("@".join(hunt) for hunt in settings.hunts)),
        *("--hypothesis-seed", str(settings.seed)),
    ]


class Reporter:
    """A pytest plugin of the controlling process. It collects results, and shows progress."""

    def __init__(self, run: Run, console: Console) -> None:
        self.run, self.console = run, console
        columns = (
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True)
        self.line = self.bar.add_task("starting", total=len(run.tasks))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take the settings and the number of workers from pytest's options."""
        self.run.settings = run_config(session.config)
        self.run.processes = session.config.getoption("numprocesses") or 1
        self.tasks = {task.name: task for task in plan(self.run.settings)}

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Select the tasks that are left after options such as -k and --lf."""
        names = {name_of(test) for test in ids}
        self.run.tasks = [task for name, task in self.tasks.items() if name in names]
        self.bar.update(self.line, total=len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the result of a test, or the error of a test that has none, as after a crash."""
        data = getattr(report, "paritybit_result", None)
        if data is not None:
            self.add(pickle.loads(data))
        elif report.failed:
            task = self.tasks[name_of(report.nodeid)]
            self.add(without_result(task, report.longreprtext, report.duration))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that the run was interrupted."""
        self.run.interrupted = excinfo.type is KeyboardInterrupt

    def add(self, result: TrialRow) -> None:
        """Add a result, and print it if it is a detection or unexpected."""
        self.run.results.append(result)
        name = result.name
        self.bar.update(self.line, advance=1, description=f"{name}: {result.status}")
        if isinstance(result, BugRow) and result.status is Status.CAUGHT:
            count = result.schedules
            after = f"after {count} schedule{'s' * (count > 1)}, {result.seconds:.1f} s"
            line = f"{name}: {result.detected_by} {after}"
            self.console.print(line, soft_wrap=True, highlight=False, markup=False)
        elif not result.status.expected:
            self.console.print(f"{name}: [bold red]{escape(result.sentence)}[/]", soft_wrap=True)


def name_of(test: str) -> str:
    """Return the name of a task from the name of its test."""
    return test.partition("[")[2].removesuffix("]")
