"""Planting faults in copies of a tree, and asking its tests whether they see them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from paritybit.compat import StrEnum
from properties.planted.fault import Fault

LIMIT_SECONDS = 300
"""After this long a run of pytest is ended, with all that it started."""

# xdist stays loaded, since the suite's conftest implements its hooks; one process runs all.
PYTEST = ("-m", "pytest", "-x", "-q", "-n", "0", "--device", "cpu", "-p", "no:cacheprovider")

TESTS_FAILED = 1
"""pytest's exit code where tests ran and some failed."""

BROKEN = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError")
"""Errors of code that does not hold together: no test of behaviour is needed to see them."""

LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv", ".*_cache", "__pycache__", "build", "paritybit-out")
)
"""What a copy of a tree leaves out, by name: nothing of it is source."""


class Verdict(StrEnum):
    """How one fault ended. CAUGHT and TIMED_OUT are as they should be."""

    CAUGHT = "caught"
    TIMED_OUT = "caught by timeout"
    SURVIVED = "survived"
    INAPPLICABLE = "does not apply"
    UNDECIDED = "undecided: its tests are not green without it"
    BROKEN = "broken: the code no longer imports"
    ERROR = "error outside a test"


GOOD = frozenset({Verdict.CAUGHT, Verdict.TIMED_OUT})


@dataclass(frozen=True)
class Outcome:
    """What became of one fault. `caught_by` is the first test that failed, or ''.

    `seconds` is how long its tests ran with the fault.
    """

    fault: str
    verdict: Verdict
    caught_by: str
    seconds: float


@dataclass(frozen=True)
class Ran:
    """One run of pytest: its exit code, None if it was ended, and what it printed."""

    code: int | None
    output: str


class Proof:
    """Copies of one tree in a scratch folder, in each of which one fault at a time is planted.

    As many runs of pytest may be under way at once as there are copies.
    """

    def __init__(self, tree: Path, scratch: Path, jobs: int) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = scratch / str(number)
            shutil.copytree(tree, copy, ignore=LEFT_OUT)
            self._free.put(copy)

    def is_green(self, tests: Sequence[str]) -> bool:
        """Whether some tests pass where nothing is planted."""
        with self.copy() as copy:
            return self.run(copy, (*PYTEST, *tests)).code == 0

    def plant(self, fault: Fault) -> Outcome:
        """Plant a fault whose tests are green without it, and return what became of it."""
        with self.copy() as copy, planted(fault, copy) as applies:
            if not applies:
                return Outcome(fault.name, Verdict.INAPPLICABLE, "", 0.0)
            started = time.monotonic()
            verdict, caught_by = judged(self.run(copy, (*PYTEST, *fault.tests)))
            seconds = round(time.monotonic() - started, 1)
        return Outcome(fault.name, verdict, caught_by, seconds)

    def stop(self) -> None:
        """End all runs that are under way, and the processes that they started."""
        for process in list(self._running):
            os.killpg(process.pid, signal.SIGKILL)

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """Have a copy to oneself while entered."""
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)

    def run(self, copy: Path, arguments: Sequence[str], limit: float = LIMIT_SECONDS) -> Ran:
        """Run Python in a copy, with its own packages first; end it after the time limit."""
        inherited = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(copy), *([inherited] if inherited else [])])
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # So that its worker processes can be ended too.
        ) as process:
            self._running.add(process)
            try:
                return Ran(*_ended(process, limit))
            finally:
                self._running.remove(process)


def _ended(process: subprocess.Popen[str], limit: float) -> tuple[int | None, str]:
    """Wait for a process; return its exit code, None after the time limit, and its output."""
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def judged(ran: Ran) -> tuple[Verdict, str]:
    """Return what a run with a fault says, and the first test that failed."""
    if ran.code is None:
        return Verdict.TIMED_OUT, f"no end within {LIMIT_SECONDS} s"
    if ran.code == 0:
        return Verdict.SURVIVED, ""
    found = re.search(r"^FAILED (.+?)(?: - (.*))?$", ran.output, re.M)
    if ran.code != TESTS_FAILED or found is None:
        return Verdict.ERROR, f"exit code {ran.code}"
    error = (found[2] or "").split(":")[0].rpartition(".")[2]
    return (Verdict.BROKEN if error in BROKEN else Verdict.CAUGHT), found[1]


_STAMPS = count(int(time.time()))


def write_source(path: Path, text: str) -> None:
    """Write a source file, at a time that no other write had.

    The interpreter knows stale byte code by the source's time, in seconds, and size alone.
    """
    path.write_text(text, encoding="utf-8")
    stamp = next(_STAMPS)
    os.utime(path, (stamp, stamp))


@contextmanager
def planted(fault: Fault, tree: Path) -> Iterator[bool]:
    """Plant a fault in a tree while entered; say whether it applies."""
    path = tree / fault.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    changed = fault.planted_in(text)
    if changed is None:
        yield False
        return
    write_source(path, changed)
    try:
        yield True
    finally:
        write_source(path, text)
