"""Replaying one case file, or many."""

import argparse
from itertools import chain

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from harness.campaigns.replay import by_trial, files_of, load_here, replay_alike, vacuous
from harness.campaigns.workers import spreading
from harness.checks.explaining import explained
from harness.cli import CANNOT_RUN, FINDING, OK, default_workers
from harness.cli.engines import replay_engine
from harness.engines.case import is_engine_case
from harness.lockstep.config import CannotRunError
from harness.lockstep.play import Lockstep
from harness.lockstep.timeline import observe
from harness.lockstep.violation import PROPERTIES


def run_replay(options: argparse.Namespace) -> int:
    """Replay one case file, or many, with all properties on."""
    if len(options.case) > 1 or options.case[0].is_dir():
        return replay_many(options)
    path = options.case[0]
    if is_engine_case(path):
        return replay_engine(path, options)
    if options.engine is not None:
        raise ValueError(f"{path.name} is no case of an engine: --engine has no place here")
    case = load_here(path, options.device)
    lockstep = Lockstep(case.trial, frozenset(PROPERTIES))
    outcome, timeline = observe(lockstep, case.schedule)
    if vacuous(outcome):
        raise CannotRunError(f"{path.name} runs no forward, so it proves nothing")
    for violation in outcome.violations:
        print(f"step {violation.step}: {violation.property}: {violation.message}")
    found = explained(lockstep, case.schedule, outcome, timeline, case.target)
    for sentence in found.explanation.proof if found.explanation is not None else ():
        print(f"  {sentence}")
    if found.error is not None:
        print(f"  the explainer failed: {found.error.rstrip()}")
    print(
        f"{outcome.steps} steps, {outcome.replays} replays, {outcome.padded_replays} padded:",
        end=" ",
    )
    print("differs" if outcome.violations else "clean")
    return FINDING if outcome.violations else OK


def replay_many(options: argparse.Namespace) -> int:
    """Replay case files, one line each; hold each against what it says."""
    console, work, skipped, wrong = Console(soft_wrap=True), [], 0, 0
    for path in files_of(options.case):
        try:
            work.append((path.stem, load_here(path, options.device)))
        except CannotRunError as error:
            console.print(f"[yellow]cannot run[/] {escape(str(error))}")
            skipped += 1
    groups = by_trial(work)
    devices = {case.trial.device for _, case in work}
    workers = min(default_workers("cuda" if "cuda" in devices else "cpu"), max(1, len(groups)))
    with Progress(console=console, transient=True) as bar, spreading(workers) as spread:
        line = bar.add_task("replaying", total=len(work))
        for replayed in chain.from_iterable(spread(replay_alike, groups)):
            mark = "[green]as it says[/] " if replayed.as_said else "[bold red]otherwise[/]  "
            console.print(f"{mark} {escape(replayed.name)}: {replayed.message}")
            wrong += not replayed.as_said
            bar.advance(line)
    console.print(
        f"{len(work)} cases: {len(work) - wrong} as they say, {wrong} otherwise,"
        f" {skipped} cannot run here"
    )
    return FINDING if wrong else CANNOT_RUN if skipped else OK
