"""The command `bisect`: finds the smallest set of bugs that explains a failing schedule."""

import argparse
from dataclasses import replace
from typing import Any

from paritybit.harness.campaigns.bisect import (
    Bisection,
    BugSet,
    hunted_case,
    likeliest_runner,
    with_goal,
)
from paritybit.harness.campaigns.replay import case_here
from paritybit.harness.checks.play import Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.exit_codes import FINDING, OK
from paritybit.harness.errors import MalformedError, known
from paritybit.harness.lockstep.config import TrialConfig, catalogued, resolve_device
from paritybit.harness.records import record as run_record
from paritybit.harness.records.case import Case, read_json, write_case
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS
from rich.console import Console


def run_bisect(options: argparse.Namespace) -> int:
    """Find the smallest set of bugs that explains a failing schedule."""
    data = None if options.case is None else read_json(options.case)
    if not options.bugs:
        raise MalformedError("name at least one bug to choose from (see paritybit bisect --help)")
    for name in options.bugs:
        known("bug", name, BUGS)
    if options.property is not None:
        known("property", options.property, PROPERTIES)
    if options.case is not None and options.runner is not None:
        raise MalformedError("a case already names its runner; give either --case or --runner")
    if options.out is not None:
        run_record.require_writable(options.out)
    console = Console(soft_wrap=True)
    case = with_goal(case_to_bisect(options, data))
    if case is None:
        console.print(
            "no property is violated with all bugs switched on, so there is nothing to explain"
        )
        return OK
    console.print(f"{case.target} on {case.trial.runner}, {len(case.schedule.steps)} steps")

    def show(bug_set: BugSet, outcome: Outcome) -> None:
        red = case.target in outcome.violated
        seen = ", ".join(name for name in PROPERTIES if name in outcome.violated) or "nothing"
        mark = "[bold red]violated[/]" if red else "[green]passed[/]  "
        console.print(f"{mark} {' + '.join(bug_set) or 'no bug'}: {seen}")

    explained = Bisection(case, show).explain()
    if explained is None:
        console.print(
            f"{case.target} is not violated with all bugs switched on, so there is nothing to "
            "explain"
        )
        return OK
    console.print(f"smallest set: [bold]{' + '.join(explained.trial.bugs) or 'no bug'}[/]")
    if options.out is not None:
        write_case(explained, options.out)
    return FINDING


def case_to_bisect(options: argparse.Namespace, data: Any) -> Case | None:
    """Return the case from a file's `data` with the requested bugs, or from a hunt with all."""
    if options.case is not None:
        case = case_here(data, options.case.name, options.device)
        trial = replace(case.trial, bugs=catalogued(options.bugs))
        return replace(case, trial=trial, target=options.property or case.target)
    runner = options.runner or likeliest_runner(options.bugs)
    known("runner", runner, RUNNERS)
    trial = TrialConfig(runner, device=resolve_device(options.device or "auto"))
    trial = trial.with_bug(*options.bugs)
    return hunted_case(trial, options.property, options.seed, options.examples)
