"""Replays cases of the sanitizer: serves an engine the same requests until the finding appears."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK, STOPPED
from paritybit.harness.cli.watch.display import Display
from paritybit.harness.cli.watch.run import WatchRun
from paritybit.harness.errors import CannotRunError, MalformedError, keep, shorten
from paritybit.harness.machine.gpus import visible_gpus
from paritybit.harness.machine.stopping import heard_by

from paritybit.drive.adapters import adapter_of
from paritybit.drive.configs import LACKING
from paritybit.drive.served import Common
from paritybit.inject import prepare
from paritybit.launch.case import WatchCase
from paritybit.launch.follow import Stops
from paritybit.launch.known import Known, known_findings
from paritybit.launch.record import WatchOptions
from paritybit.launch.verdict import ConfigOutcome, open_questions
from paritybit.launch.words import named, plural

MOST_LINES = 20
"""The most lines at the end of an engine's log that are printed."""

LONGEST = 3600.0
"""The time limit in seconds for a script."""


def replay_watched(
    cases: Sequence[tuple[WatchCase, str]], spec: str
) -> tuple[list[int], int | None]:
    """Replay cases, each with its file name, on an engine.

    Returns their exit codes, and that of the signal after which no further one is played, or None.
    """
    adapter, known = adapter_of(spec), known_findings(None, spec)
    engine = adapter.prepare(spec)
    display, stops, codes = Display(), Stops(), list[int]()
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        prepare(Path(scratch))
        for number, (case, name) in enumerate(cases):
            folder = Path(scratch) / f"case-{number}"
            options = WatchOptions("", every=case.every, checks=case.checks, known=known)
            run = WatchRun(folder, Path(scratch), display, stops, options)
            with heard_by(stops.hear):
                outcome = run.play(case, adapter, engine, LONGEST)
            if stops.received is None or case.key in outcome.tally.findings:
                text, code = judge(case, outcome, known, spec)
                display.put(f"{name}: {text}", style="bold")
                if code == CANNOT_RUN and outcome.code and outcome.log is not None:
                    show_log((folder / outcome.log).read_text("utf-8", "replace"), display)
                codes.append(code)
            if stops.received is not None:
                return codes, STOPPED[stops.received]
    return codes, None


def show_log(text: str, display: Display) -> None:
    """Print the end of an engine's log, and keep the whole."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines[-MOST_LINES:]:
        display.put(f"  {line}")
    display.put(f"the whole output of the engine: {keep(text, 'log')}")


def require_engine(recorded: str, name: str, spec: str | None) -> None:
    """Raise MalformedError without an engine for a case that was recorded on one."""
    if spec is None:
        raise MalformedError(
            f"{name} was recorded on {shorten(recorded)}, and a case cannot choose which "
            "code runs: name the engine with --engine NAME==VERSION or --engine FOLDER"
        )


def require_here(case: WatchCase, name: str, spec: str | None) -> Common:
    """Return the settings of a case.

    Raises MalformedError without an engine, and CannotRunError for a case of another device.
    """
    require_engine(case.engine, name, spec)
    adapter = adapter_of(str(spec))
    try:
        served = adapter.settings.of(case.script.settings)
    except ValueError as error:
        raise MalformedError(f"{name} is not a complete case of watch: {error}") from error
    if served.device == "cuda" and not visible_gpus():
        raise CannotRunError(f"{name} was recorded on a GPU, but none is visible here")
    return served


def judge(case: WatchCase, outcome: ConfigOutcome, known: Known, spec: str) -> tuple[str, int]:
    """Return the result of a case on an engine, and its exit code.

    A case that shows its finding not even where it was recorded does not show that it is fixed.
    """
    found = outcome.tally.findings
    if case.key in found:
        before = "" if case.forward is None else f", recorded in forward {case.forward}"
        at = f"the finding appeared in forward {found[case.key].forward}{before}"
        thread = known.where(found[case.key])
        return (f"finding: {at}", FINDING) if thread is None else (f"known: {at}: {thread}", OK)
    if outcome.code == LACKING:
        return "no verdict: this engine cannot be served so", CANNOT_RUN
    if others := [one for one in found.values() if known.where(one) is None]:
        which = f"{plural(len(others), 'other finding')}, such as {named(others[0])}"
        return f"no verdict: not the recorded finding, but {which}", CANNOT_RUN
    for reason in open_questions([replace(outcome, log=None)]):
        return f"no verdict: {reason}", CANNOT_RUN
    here = spec == case.engine and "==" in spec
    if not here and case.again is not False:
        return "no finding", OK
    when = "on the release where it was recorded" if here else "right after its run either"
    text = f"no verdict: no finding, but the case did not show it {when}, so it proves no fix"
    return text, CANNOT_RUN
