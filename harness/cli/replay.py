"""The command `replay`: says of each case whether its recorded finding appears."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritybit.harness.campaigns.search import without_error
from paritybit.harness.campaigns.task import cached_player, explain
from paritybit.harness.checks.play import DeviceLostError, Outcome, SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.display import print_errors, summary_of
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.cli.explore import replay_explored
from paritybit.harness.cli.watch.replay import replay_watched, require_engine, require_here
from paritybit.harness.errors import (
    CannotRunError,
    MalformedError,
    UnknownNameError,
    headline,
    printable,
    report_error,
)
from paritybit.harness.explain.report import observe
from paritybit.harness.lockstep.config import require_cuda
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load
from rich.console import Console
from rich.markup import escape

from paritybit.explore.case import ExploreCase
from paritybit.launch.case import WatchCase

AnyCase = Case | WatchCase | ExploreCase

PROVES_NOTHING = "runs no forward, so it proves nothing"


@dataclass(frozen=True)
class Replayed:
    """The result of one case: the exit code that it has alone, and a message.

    `error` is the traceback of an internal error. The case has no verdict then.
    """

    code: int
    message: str
    error: str | None = None


MARKS = {FINDING: "[bold red]finding[/]   ", OK: "[green]no finding[/]"}
NO_VERDICT = "[yellow]no verdict[/]"


def run_replay(paths: Sequence[Path], engine: str | None) -> int:
    """Replay case files, of the laboratory or of an engine, and return the exit code.

    It is FINDING if the recorded finding of one appeared, else CANNOT_RUN if one has no verdict,
    for example because only other findings appeared, and else OK.
    """
    files, console = files_of(paths), Console(soft_wrap=True)
    alone, codes, work = len(files) == 1, list[int](), list[tuple[AnyCase, str]]()
    for path in files:
        try:
            case = load_known(path)
            require_playable(case, path.name, engine)
            work.append((case, path.name))
        except CannotRunError as error:
            if alone:
                raise
            console.print(f"{NO_VERDICT} {escape(printable(str(error)))}")
            codes.append(CANNOT_RUN)
    watched, errors = list[tuple[WatchCase, str]](), list[str]()
    for case, name in work:
        if isinstance(case, WatchCase):
            watched.append((case, name))
        elif isinstance(case, ExploreCase):
            codes.append(replay_explored(case, name, str(engine)))
        elif alone:
            return replay_one(case, name)
        else:
            ended = replay(case)
            mark = MARKS.get(ended.code, NO_VERDICT)
            console.print(f"{mark} {escape(printable(name))}: {escape(ended.message)}")
            codes.append(ended.code)
            errors += [ended.error] if ended.error is not None else []
    if watched:
        more, stopped = replay_watched(watched, str(engine))
        codes += more
        if stopped is not None:
            return report_error("interrupted", FINDING if FINDING in codes else stopped)
    if alone:
        return codes[0]
    line, code = summary_of(codes)
    console.print(line)
    print_errors(errors)
    return code


def require_playable(case: AnyCase, name: str, engine: str | None) -> None:
    """Raise an error for a case that cannot be played with these options, or not here.

    Raises MalformedError without --engine if a case needs it, or with it if a case cannot have it.
    Raises CannotRunError for a case of a device that is not here.
    """
    if isinstance(case, WatchCase):
        require_here(case, name, engine)
    elif isinstance(case, Case):
        if engine is not None:
            raise MalformedError(f"{name} is not the case of an engine, so --engine cannot be used")
        if case.trial.device == "cuda":
            require_cuda()
    else:
        require_engine(case.engine, name, engine)


def replay_one(case: Case, name: str) -> int:
    """Replay a case, and print its violations with an explanation of the first."""
    seen = observe(player_of(case), case.schedule)
    outcome = seen.outcome
    if vacuous(without_error(outcome)):
        raise CannotRunError(f"{name} {PROVES_NOTHING}")
    for violation in outcome.violations:
        print(f"step {violation.step}: {violation.property}: {violation.message}")
    explanation, error = explain(seen, case.target)
    if error is not None:
        print("  no explanation: the explainer failed")
        print_errors([error])
    for sentence in explanation.proof if explanation is not None else ():
        print(f"  {sentence}")
    print(
        f"{outcome.steps} steps, {outcome.replays} replays ({outcome.padded_replays} padded):",
        end=" ",
    )
    print("differs" if outcome.violations else "clean")
    ended = judged(case, outcome)
    if ended.code == CANNOT_RUN:
        raise CannotRunError(f"{name}: {ended.message}")
    return ended.code


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the case files of files and folders. Raises MalformedError for an empty folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise MalformedError(f"{path} contains no case file")
        found += inside
    return found


def load_known(path: Path) -> AnyCase:
    """Load a case. Raises as `load` does, and CannotRunError for a name that is unknown here."""
    try:
        case = load(path, Case, WatchCase, ExploreCase)
    except UnknownNameError as error:
        raise CannotRunError(str(error)) from error
    assert isinstance(case, AnyCase)
    return case


def vacuous(outcome: Outcome) -> bool:
    """Whether an outcome proves nothing: no forward ran, and the engine could be captured."""
    return not outcome.steps and not outcome.violations


def player_of(case: Case) -> SchedulePlayer:
    """Return the player of a case's trial, with all properties on."""
    player = cached_player(case.trial)
    player.set_properties(PROPERTIES)
    return player


def replay(case: Case) -> Replayed:
    """Replay a case with all properties on.

    Once the device is lost, every later case fails with an internal error.
    """
    try:
        return judged(case, player_of(case).play(case.schedule))
    except DeviceLostError as lost:
        return judged(case, lost.outcome)
    except Exception as error:
        return failed(traceback_of(error))


def judged(case: Case, outcome: Outcome) -> Replayed:
    """Return the result of a case: whether its schedule violates what it recorded."""
    if outcome.error is not None:
        return failed(outcome.error)
    if vacuous(outcome):
        return Replayed(CANNOT_RUN, PROVES_NOTHING)
    wanted, found = case.expected, outcome.violated
    shown = ", ".join(name for name in PROPERTIES if name in found)
    if not found:
        return Replayed(OK, "clean")
    if wanted and not wanted & found:
        missing = ", ".join(sorted(wanted))
        return Replayed(CANNOT_RUN, f"{shown} instead of the recorded violation of {missing}")
    return Replayed(FINDING, shown)


def failed(error: str) -> Replayed:
    """Return the result of a case with an internal error."""
    return Replayed(CANNOT_RUN, headline(error), error)
