"""The command `explore`, and the replay of its cases."""

from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, OK
from paritybit.harness.cli.folders import for_record, run_folder, swap_link
from paritybit.harness.errors import CannotRunError
from rich.console import Console

from paritybit.explore.bound import Bound
from paritybit.explore.case import ExploreCase
from paritybit.explore.engines import search_of
from paritybit.explore.search import CopyError, Explored, violation_of
from paritybit.launch.record import write

NEEDED = "evictions", "shared prefixes", "tombstones"
"""Events that a search must have reached for a verdict."""


def run_explore(engine: str, bound: Bound, depth: int, seconds: int, out: Path) -> int:
    """Explore an engine up to a bound, print the result, and return the exit code."""
    name, search = search_of(engine, bound)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"paritybit: explore {name} up to {depth} actions")

    def report(found: Explored) -> None:
        console.print(f"{found.seconds:.0f} s: {found.states} states, depth {found.depth} complete")

    try:
        found = search.run(depth, seconds, report)
    except CopyError as error:
        raise CannotRunError(str(error)) from error
    console.print(
        f"{found.states} states, {found.transitions} actions tried in {found.seconds:.1f} s; "
        f"complete up to {found.depth} actions"
    )
    console.print(f"reached: {', '.join(sorted(found.reached)) or 'nothing'}")
    if found.violation is None:
        line, code = verdict_of(found)
        console.print(line, style="bold")
        return code
    with run_folder(out) as folder:
        path = folder / "cases" / "explore.json"
        path.parent.mkdir(exist_ok=True)
        write(ExploreCase(for_record(engine), bound, found.path, found.violation), path)
        show(console, found.path, found.violation)
        console.print(f"to replay: paritybit replay {path} --engine {for_record(engine)}")
        swap_link(folder)
    return FINDING


def verdict_of(found: Explored) -> tuple[str, int]:
    """Return the verdict of a search without a violation, and the exit code."""
    if found.interrupted:
        return "interrupted, no violation until then", INTERRUPTED
    missing = [one for one in NEEDED if one not in found.reached]
    if missing or not found.depth:
        what = ", ".join(missing) or "a complete depth"
        return f"no verdict: the search did not reach {what}", CANNOT_RUN
    if found.late:
        why = f"--seconds ended the search; no violation in {found.depth} actions"
        return f"no verdict: {why}", CANNOT_RUN
    rest = "no state is left" if found.closed else "longer schedules were not explored"
    return f"no violation in {found.depth} actions; {rest}", OK


def show(console: Console, actions: Sequence[str], violation: str) -> None:
    """Print a schedule and its violation."""
    for number, action in enumerate(actions, 1):
        console.print(f"{number:3}. {action}")
    console.print(violation, style="bold", markup=False)


def replay_explored(case: ExploreCase, name: str, engine: str) -> int:
    """Replay a case of `explore`. Returns 1 if a law is violated, 0 if none, and else 125."""
    _, search = search_of(engine, case.bound)
    console = Console(soft_wrap=True, highlight=False)
    try:
        violation = violation_of(search.make(), case.actions)
    except CannotRunError as error:
        console.print(f"{name}: no verdict: {error}", style="bold", markup=False)
        return CANNOT_RUN
    if violation is None:
        console.print(f"{name}: no finding: no law is violated", style="bold", markup=False)
        return OK
    show(console, case.actions, violation)
    return FINDING
