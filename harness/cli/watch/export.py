"""Exports a case of the sanitizer as a test for the engine's own suite: `export-test`."""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.records.case import read_json

from paritybit.drive.engines import DRIVEN, Driven, driven
from paritybit.export.standalone import standalone
from paritybit.export.with_paritybit import with_paritybit
from paritybit.launch.case import WatchCase
from paritybit.launch.reading import case_of, is_case

LONGEST = 600.0
"""The time limit in seconds for an exported test."""

RED = re.compile(r"^FAILED \(failures=\d+\)$", re.MULTILINE)
"""The output of unittest for failures. An error in a test is not a failure."""


def run_export(options: argparse.Namespace) -> int:
    """Write the test of a case, run it if an engine is named, and return the exit code."""
    path: Path = options.case
    data = read_json(path)
    if not is_case(data):
        raise MalformedError(f"{path.name} is not a case of watch; export-test takes no other")
    case = case_of(data, path.name)
    asked = engine_of(case, path.name) if options.engine is None else driven(options.engine)
    text = with_paritybit(data) if options.with_paritybit else standalone(case, asked.package.name)
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    target: Path = options.out or path.with_name(f"test_{name}.py")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotRunError(f"cannot write {target}: {error.strerror}") from error
    print(f"{len(text.splitlines())} lines: {target}")
    if options.engine is not None:
        require_red(target, case, asked, options)
        print(f"it fails on {options.engine}, as it should")
    return OK


def engine_of(case: WatchCase, name: str) -> Driven:
    """Return the engine whose settings a case has. Raises MalformedError if there is none."""
    for one in DRIVEN:
        try:
            one.served.of(case.script.settings)
        except ValueError:
            continue
        return one
    raise MalformedError(f"{name} is not a complete case of watch: no engine has its settings")


def require_red(target: Path, case: WatchCase, asked: Driven, options: argparse.Namespace) -> None:
    """Raise CannotRunError unless a test fails on the named engine."""
    engine = asked.starter.prepare(options.engine)
    _, variables = asked.starter.playing(engine, case.script, ())
    words = [sys.executable, "-m", "unittest", target.name]
    if options.with_paritybit:
        variables["ENGINE"] = str(options.engine)
    elif case.script.settings["device"] == "cpu":
        words[1:1] = ["-m", "paritybit.drive.on_cpu", asked.package.name]
    try:
        done: Any = subprocess.run(
            words, cwd=target.parent, env=variables, capture_output=True, text=True,
            timeout=LONGEST, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CannotRunError(f"the test did not end in {LONGEST:.0f} s") from error
    if RED.search(done.stderr) is None:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise CannotRunError(
            f"the test does not fail on {options.engine} ({last}): what it asserts does not show "
            "this finding"
        )
