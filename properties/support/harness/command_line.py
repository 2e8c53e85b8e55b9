"""What tests of the command line share: its exit codes, cases, and JSON files that are edited."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from paritybit.harness.cli import app
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.machine.stopping import Stop
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import save
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from typer.main import get_command

from properties.support.places import ROOT

OK, FINDING, MALFORMED, CANNOT_RUN, INTERRUPTED, TERMINATED, HUNG_UP = 0, 1, 2, 125, 130, 143, 129

OF_THIS_RUN = ("PYTEST_", "HYPOTHESIS_", "CI")
"""How the variables begin that say something of the run of these tests."""

LONGEST = 150.0
"""Seconds after which a process is taken to hang."""

Data = dict[str, Any]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, in bytes, within. Imports write no compiled files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = compiles


def parsed(*words: str) -> Data:
    """Return the options of a command line without running it. Raises MalformedError."""
    top: Any = get_command(app.app)
    for command in top.commands.values():
        command.callback = lambda **options: options
    with patch.object(app, "get_command", lambda _: top):
        options: Any = app.run(app.Line(words, Stop()))
    return dict(options) if isinstance(options, dict) else {}


def write_swa_pad_case(path: Path) -> None:
    """Write a case of swa_pad that differs at step 3, of one captured size."""
    schedule = Schedule((Admit(1, 16), Admit(1, 16), Decode((0, 1)), Decode((0,))))
    trial = TrialConfig(buckets=(2,), token_buckets=(4,)).with_bug("swa_pad")
    save(Case(trial, schedule, "kv_parity", 0, ()), path)


def edit(path: Path, *keys: str | int, value: Any) -> None:
    """Set one entry of a JSON file."""
    data = whole = json.loads(path.read_text())
    for key in keys[:-1]:
        data = data[key]
    data[keys[-1]] = value
    path.write_text(json.dumps(whole))


def kept_traceback(said: str) -> str:
    """Return what the file holds that a sentence about an error of ours names; it is removed."""
    named = re.fullmatch(r"paritybit: (?:no verdict: )?internal error: .*: (/[^:\n]+)\n", said)
    assert named is not None, said
    text = Path(named[1]).read_text()
    Path(named[1]).unlink()
    return text


@contextmanager
def in_its_own_group(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python's words in a process group for signals.

    All of the group is killed once it has run for `LONGEST` seconds: a test that reads what it
    says then reads the end of it, and fails instead of waiting for ever. It is killed as well if
    it has not ended when this ends, as after an assertion that failed.
    """
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        too_long = threading.Timer(LONGEST, kill)
        too_long.daemon = True
        too_long.start()
        try:
            yield process
        finally:
            too_long.cancel()
            if process.poll() is None:
                kill()


def python(
    *words: str,
    folder: Path = ROOT,
    stdin: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run Python's words, with this tree importable and no variable of this run set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_RUN)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
