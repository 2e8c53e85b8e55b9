"""How pytest runs the suite. Options, workers and the fixture `device` are those of the plugin."""

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from paritybit.reports.annotations import github_error, on_github

pytest_plugins = ("paritybit.harness.campaigns.plugin",)

os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", str(Path("paritybit-out/hypothesis").resolve())
)

if sys.dont_write_bytecode:  # Compiling takes half of the time of collecting.
    sys.pycache_prefix = sys.pycache_prefix or str(Path("paritybit-out/bytecode").resolve())
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Otherwise each child compiles its imports.
    sys.dont_write_bytecode = False


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Annotate failed tests in a job of GitHub Actions."""
    stats = terminalreporter.stats
    for report in (*stats.get("failed", ()), *stats.get("error", ())) if on_github() else ():
        terminalreporter.write_line(annotation(report))


def annotation(report: pytest.TestReport) -> str:
    """Return the workflow command that shows a failed test at its line.

    pytest-github-actions-annotate-failures does nothing where workers run the tests.
    """
    file, line, name = report.location
    crash = getattr(report.longrepr, "reprcrash", None)
    message = f"{name}: {crash.message if crash is not None else report.longreprtext}"
    return github_error(message, file=file, line=(line or 0) + 1)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed the global generators before each test, that of torch once torch is imported."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(0)
