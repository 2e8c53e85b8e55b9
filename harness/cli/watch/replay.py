"""Replays cases of the sanitizer: serves an engine the same requests until the finding appears."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.cli.display import summary_of
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK, STOPPED
from paritybit.harness.cli.watch.display import Display
from paritybit.harness.cli.watch.run import WatchRun
from paritybit.harness.errors import CannotRunError, MalformedError, report_error, shorten
from paritybit.harness.machine.gpus import visible_gpus
from paritybit.harness.machine.stopping import heard_by

from paritybit.drive.adapters import adapter_of
from paritybit.drive.configs import LACKING
from paritybit.inject import prepare
from paritybit.launch.case import WatchCase
from paritybit.launch.follow import Stops
from paritybit.launch.record import WatchOptions
from paritybit.launch.verdict import ConfigOutcome, open_questions
from paritybit.launch.words import plural

OTHER = -1
"""The result of a case if the engine only has other findings."""

LONGEST = 3600.0
"""The time limit in seconds for a script."""


def replay_watched(cases: Sequence[tuple[WatchCase, str]], spec: str | None) -> int:
    """Replay cases, each with its file name, on an engine, and return the exit code.

    For one case it is 1 if the engine has a finding. For several it is 1 if any did not reproduce
    its finding.
    """
    for case, name in cases:
        require_here(case, name, spec)
    assert spec is not None
    adapter = adapter_of(spec)
    engine = adapter.prepare(spec)
    display = Display()
    codes: list[int] = []
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        prepare(Path(scratch))
        stops = Stops()
        for number, (case, name) in enumerate(cases):
            folder = Path(scratch) / f"case-{number}"
            options = WatchOptions("", every=case.every, checks=case.checks)
            run = WatchRun(folder, Path(scratch), display, stops, options)
            with heard_by(stops.hear):
                outcome = run.play(case, adapter, engine, LONGEST)
            if stops.received is not None and case.key not in outcome.tally.findings:
                return report_error("interrupted", STOPPED[stops.received])
            text, code = judge(case, outcome)
            display.put(f"{name}: {text}", style="bold")
            codes.append(code)
    if len(cases) == 1:
        return FINDING if codes[0] == OTHER else codes[0]
    wrong = sum(code in (OK, OTHER) for code in codes)
    line, code = summary_of(len(cases), wrong, codes.count(CANNOT_RUN))
    display.put(line)
    return code


def require_here(case: WatchCase, name: str, spec: str | None) -> None:
    """Raise MalformedError without an engine, and CannotRunError for a case of another device."""
    if spec is None:
        raise MalformedError(
            f"{name} was recorded on {shorten(case.engine)}, and a case cannot choose which "
            "code runs: name the engine with --engine NAME==VERSION or --engine FOLDER"
        )
    adapter = adapter_of(spec)
    try:
        adapter.settings.of(case.script.settings)
    except ValueError as error:
        raise MalformedError(f"{name} is not a complete case of watch: {error}") from error
    if case.script.settings["device"] == "cuda" and not visible_gpus():
        raise CannotRunError(f"{name} was recorded on a GPU, but none is visible here")


def judge(case: WatchCase, outcome: ConfigOutcome) -> tuple[str, int]:
    """Return the result of a case, and its exit code, or OTHER with other findings only."""
    found = outcome.tally.findings
    if case.key in found:
        before = "" if case.forward is None else f", recorded in forward {case.forward}"
        at = f"forward {found[case.key].forward}{before}"
        return f"reproduced: the finding appeared in {at}", FINDING
    if outcome.code == LACKING:
        return "no verdict: this engine cannot be served so", CANNOT_RUN
    if found:
        return f"not reproduced, but {plural(len(found), 'other finding')}", OTHER
    for reason in open_questions([outcome]):
        return f"no verdict: {reason}", CANNOT_RUN
    return "not reproduced: no finding", OK
