"""`pytest -p paritybit`: each test fails if the engines that it ran broke a law meanwhile."""

from collections.abc import Generator
from typing import Any

import pytest

from paritybit.testing.blocks import session
from paritybit.testing.outcome import reports


def register(config: pytest.Config) -> None:
    """Add the plugin to a process that runs tests: with xdist these are the workers."""
    workers = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not workers:
        config.pluginmanager.register(Plugin(), "paritybit-watch")


class Plugin:
    """Watches from before the tests are collected, and looks at the journals after each test."""

    def __init__(self) -> None:
        self.session = session()
        self.forwards = 0
        self.undecided: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Generator[None, Any, Any]:
        """Run a test, then fail it for what was found meanwhile."""
        self.look()
        result = yield
        if findings := self.look():
            raise AssertionError(reports(findings))
        return result

    def look(self) -> list[Any]:
        """Return what was found since the last look, and count the rest."""
        seen = self.session.seen()
        self.forwards += seen.forwards
        self.undecided.update(seen.undecided)
        return seen.findings

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how much was checked, and what could not be."""
        self.look()
        terminalreporter.write_line(f"paritybit: {self.forwards} forward passes were checked")
        for what in sorted(self.undecided):
            terminalreporter.write_line(f"paritybit: not judged: {what}")
