"""The command `replay`. Compares each of several cases with its recorded result."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritybit.harness.campaigns.search import without_error
from paritybit.harness.campaigns.task import cached_player, explain
from paritybit.harness.checks.play import DeviceLostError, Outcome, SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.display import print_errors, summary_of
from paritybit.harness.cli.exit_codes import FINDING, OK
from paritybit.harness.cli.explore import replay_explored
from paritybit.harness.cli.watch.replay import replay_watched
from paritybit.harness.errors import (
    CannotRunError,
    MalformedError,
    UnknownNameError,
    headline,
    printable,
)
from paritybit.harness.explain.report import observe
from paritybit.harness.lockstep.config import require_cuda
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import FileKind, load
from rich.console import Console
from rich.markup import escape

from paritybit.explore.case import ExploreCase
from paritybit.launch.case import WatchCase


@dataclass(frozen=True)
class Replayed:
    """The result of one case. `as_said` is whether it reproduced its recorded result.

    `error` is the traceback of an internal error. The case has no verdict then.
    """

    as_said: bool
    message: str
    error: str | None = None


def run_replay(paths: Sequence[Path], engine: str | None) -> int:
    """Replay case files, of the laboratory or of an engine."""
    if len(paths) > 1 or paths[0].is_dir():
        if engine is None:
            return replay_many(paths)
        return replay_watched(
            [(load(path, WatchCase), path.name) for path in files_of(paths)], engine
        )
    case, name = load_known(paths[0], Case, WatchCase, ExploreCase), paths[0].name
    if isinstance(case, ExploreCase):
        return replay_explored(case, name, engine)
    if isinstance(case, WatchCase):
        return replay_watched([(case, name)], engine)
    assert isinstance(case, Case)
    if engine is not None:
        raise MalformedError(f"{name} is not the case of an engine, so --engine cannot be used")
    require_device(case)
    return replay_one(case, name)


def require_device(case: Case) -> None:
    """Raise CannotRunError for a case of a GPU without a usable one."""
    if case.trial.device == "cuda":
        require_cuda()


def replay_one(case: Case, name: str) -> int:
    """Replay a case, and print its violations with an explanation of the first."""
    seen = observe(player_of(case), case.schedule)
    outcome = seen.outcome
    if vacuous(without_error(outcome)):
        raise CannotRunError(f"{name} runs no forward, so it proves nothing")
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
    return FINDING if outcome.violations else OK


def replay_many(paths: Sequence[Path]) -> int:
    """Replay case files, and compare each with its recorded result. Prints one line per case."""
    console, work, skipped = Console(soft_wrap=True), list[tuple[str, Case]](), 0
    for path in files_of(paths):
        try:
            case = load_known(path, Case)
            require_device(case)
        except CannotRunError as error:
            console.print(f"[yellow]cannot run[/] {escape(printable(str(error)))}")
            skipped += 1
        else:
            work.append((printable(path.stem), case))
    ended: list[Replayed] = []
    for name, case in work:
        ended.append(replay(case))
        console.print(f"{mark_of(ended[-1])} {escape(name)}: {escape(ended[-1].message)}")
    failed = [one.error for one in ended if one.error is not None]
    wrong = sum(not one.as_said for one in ended) - len(failed)
    line, code = summary_of(len(ended) + skipped, wrong, skipped + len(failed))
    console.print(line)
    print_errors(failed)
    return code


def mark_of(replay: Replayed) -> str:
    """Return the beginning of a case's line."""
    if replay.error is not None:
        return "[bold red]failed[/]        "
    return "[green]reproduced[/]    " if replay.as_said else "[bold red]not reproduced[/]"


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the case files of files and folders. Raises MalformedError for an empty folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise MalformedError(f"{path} contains no case file")
        found += inside
    return found


def load_known(path: Path, *kinds: type[FileKind]) -> FileKind:
    """Load a case. Raises as `load` does, and CannotRunError for a name that is unknown here."""
    try:
        return load(path, *kinds)
    except UnknownNameError as error:
        raise CannotRunError(str(error)) from error


def vacuous(outcome: Outcome) -> bool:
    """Whether an outcome proves nothing: no forward ran, and the engine could be captured."""
    return not outcome.steps and not outcome.violations


def player_of(case: Case) -> SchedulePlayer:
    """Return the player of a case's trial, with all properties on."""
    player = cached_player(case.trial)
    player.set_properties(PROPERTIES)
    return player


def replay(case: Case) -> Replayed:
    """Replay a case with all properties on, and compare the result with the recorded one.

    Once the device is lost, every later case fails with an internal error.
    """
    try:
        return judged(case, player_of(case).play(case.schedule))
    except DeviceLostError as lost:
        return judged(case, lost.outcome)
    except Exception as error:
        return failed(traceback_of(error))


def judged(case: Case, outcome: Outcome) -> Replayed:
    """Compare the violations of a case's schedule with the recorded ones."""
    if outcome.error is not None:
        return failed(outcome.error)
    if vacuous(outcome):
        return Replayed(as_said=False, message="runs no forward, so it proves nothing")
    wanted, found = case.expected, outcome.violated
    as_said = wanted <= found if wanted else not found
    shown = ", ".join(name for name in PROPERTIES if name in found) or "clean"
    missing = f"; expected {', '.join(sorted(wanted)) or 'no violation'}" * (not as_said)
    return Replayed(as_said, f"{shown}{missing}")


def failed(error: str) -> Replayed:
    """Return the result of a case with an internal error."""
    return Replayed(as_said=False, message=headline(error), error=error)
