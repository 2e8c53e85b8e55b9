"""The command `replay`."""

from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.campaigns.replay import (
    Replayed,
    files_of,
    load_known,
    player_of,
    replay,
    vacuous,
)
from paritybit.harness.campaigns.search import without_error
from paritybit.harness.campaigns.task import explain
from paritybit.harness.cli.display import print_errors, summary_of
from paritybit.harness.cli.exit_codes import FINDING, OK
from paritybit.harness.cli.explore import replay_explored
from paritybit.harness.cli.watch.replay import replay_watched
from paritybit.harness.errors import CannotRunError, MalformedError, printable
from paritybit.harness.explain.report import observe
from paritybit.harness.lockstep.config import require_cuda
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load
from rich.console import Console
from rich.markup import escape

from paritybit.explore.case import ExploreCase
from paritybit.launch.case import WatchCase


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
