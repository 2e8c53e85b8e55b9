"""The plugin for `pytest -p paritybit`: a test fails if its engines violate a law."""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pytest

from paritybit.testing.blocks import session
from paritybit.testing.outcome import reports

FORWARDS, UNDECIDED, LATE = "paritybit_forwards", "paritybit_undecided", "paritybit_late"
"""The keys in the output of an xdist worker."""


def register(config: pytest.Config) -> None:
    """Add the plugin: `Watching` in a process that runs tests, else `Summary` (with xdist)."""
    # xdist starts workers if both are set, as `-n` does.
    spread = config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    starts_workers = spread and not hasattr(config, "workerinput")
    plugin = Summary() if starts_workers else Watching(config)
    config.pluginmanager.register(plugin, "paritybit-watch")


class Summary:
    """Reports at the end how much was checked, and what was found after the last test."""

    def __init__(self) -> None:
        self.forwards = 0
        self.undecided: set[str] = set()
        self.late: list[str] = []

    def add(self, forwards: int, undecided: Iterable[str], late: Iterable[str]) -> None:
        """Add the numbers and findings of this process or of a worker."""
        self.forwards += forwards
        self.undecided.update(undecided)
        self.late += late

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the output of an xdist worker that ends."""
        told: Mapping[str, Any] = getattr(node, "workeroutput", {})
        self.add(told.get(FORWARDS, 0), told.get(UNDECIDED, ()), told.get(LATE, ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if something was found after the last test."""
        if self.late and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print how much was checked, what could not be judged, and what was found at the end."""
        terminalreporter.write_line(f"paritybit: {self.forwards} forward passes were checked")
        for what in sorted(self.undecided):
            terminalreporter.write_line(f"paritybit: not judged: {what}")
        for text in self.late:
            terminalreporter.write_line(f"paritybit: found after the last test: {text}")


class Watching(Summary):
    """Starts to watch before tests are collected, and reads the journals after each phase."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self.config, self.session = config, session()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a phase of a test if something was found since the last phase ended."""
        report = yield
        findings = self.look()
        if findings and report.outcome == "failed":
            report.sections.append(("paritybit", reports(findings)))
        elif findings:
            report.outcome, report.longrepr = "failed", reports(findings)
        return report

    def look(self) -> list[Any]:
        """Return the findings since the last call, and add up the counts."""
        seen = self.session.seen()
        self.add(seen.forwards, seen.undecided, ())
        return seen.findings

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Read the journals once more. An xdist worker passes its results to the main process."""
        if findings := self.look():
            self.late.append(reports(findings))
        told = getattr(self.config, "workeroutput", None)
        if told is not None:
            told.update(
                {FORWARDS: self.forwards, UNDECIDED: sorted(self.undecided), LATE: self.late}
            )
        super().pytest_sessionfinish(session)
