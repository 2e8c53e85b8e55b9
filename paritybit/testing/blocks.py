"""Watches the engines in this process, and in its child processes, while a block runs."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paritybit
from paritybit import inject
from paritybit.launch.journals import Journals
from paritybit.launch.tally import Tally
from paritybit.testing.outcome import UndecidedError, reports
from paritybit.watch import attach
from paritybit.watch.journal import of_process
from paritybit.watch.settings import VARIABLE, Settings


@dataclass
class Seen:
    """The entries of the journals since the last call of `Session.seen`."""

    findings: list[Mapping[str, Any]] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    forwards: int = 0


class Session:
    """Watches this process until it ends. Create it before an engine is imported."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="paritybit-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        injected, journals = self.folder / "path", self.folder / "journals"
        injected.mkdir()
        inject.prepare(injected, paritybit.__version__)
        settings = Settings(str(journals)).text()
        os.environ.update(inject.environment_with(os.environ, injected, settings))
        sys.path.insert(0, str(injected))  # For the entry points: another version may be installed.
        attach.install()
        self.journals, self.tally = Journals(journals), Tally()

    def seen(self) -> Seen:
        """Return the findings and the number of forward passes since the last call."""
        own = of_process()
        if own is not None and (own.file is not None or own.waiting):
            own.settle()
            own.write_counts()
        new, before = Seen(), self.tally.count("forwards")
        for process, entry in self.journals.entries():
            self.tally.take(process, entry)
            if entry["kind"] == "finding":
                new.findings.append(entry)
            elif entry["kind"] == "undecided":
                new.undecided.append(str(entry.get("what")))
        new.undecided += self.journals.incomplete()
        new.forwards = self.tally.count("forwards") - before
        return new


_SESSIONS: list[Session] = []


def session() -> Session:
    """Return the session of this process, and start it if there is none."""
    if VARIABLE in os.environ and not _SESSIONS:
        raise UndecidedError(f"this process is watched already: {VARIABLE} is set")
    if not _SESSIONS:
        _SESSIONS.append(Session())
    return _SESSIONS[0]


@contextmanager
def watching() -> Iterator[None]:
    """Watch the engines that a block runs, as `paritybit watch` does.

    The engine must not have been imported before the first such block of the process. Processes
    that a block starts are watched too.

    Raises AssertionError with a report of each finding, and UndecidedError if no forward pass was
    checked or something could not be judged. An error of the block itself is passed on, or is the
    cause of the AssertionError if there is a finding.
    """
    mine = session()
    mine.seen()
    try:
        yield
    except BaseException as error:
        findings = mine.seen().findings
        if findings and not isinstance(error, KeyboardInterrupt):
            raise AssertionError(reports(findings)) from error
        raise
    raise_for(mine.seen())


def raise_for(seen: Seen) -> None:
    """Raise the error for what was seen in a block, if there is one."""
    if seen.findings:
        raise AssertionError(reports(seen.findings))
    if seen.undecided:
        raise UndecidedError("; ".join(seen.undecided))
    if not seen.forwards:
        raise UndecidedError("no forward pass of a supported engine was checked")
