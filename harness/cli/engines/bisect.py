"""Bisecting over what earlier replays left in an engine's static inputs."""

import argparse
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.engines.trial import case_here
from paritybit.harness.cli.exit_codes import FINDING, OK
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines.localise import Leftovers
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.engines.trial import case_leg, run_legs
from paritybit.harness.errors import CannotRunError, MalformedError, known
from paritybit.harness.machine.workers import ONE
from rich.console import Console


def bisect_engine(data: Any, options: argparse.Namespace) -> int:
    """Find the smallest set of static inputs whose leftovers explain an engine's case."""
    if options.bugs:
        raise MalformedError(
            "an engine's case has no bugs to choose from; bisect compares its static inputs"
        )
    if options.runner is not None or options.out is not None:
        raise MalformedError(
            "an engine's case already names its runner and its result is not written: omit "
            "--runner and --out"
        )
    if options.property is not None:
        known("property", options.property, PROPERTIES)
    case = case_here(data, options.case.name, options)
    engine = engines.find(options.engine)
    case = replace(case, case=replace(case.case, target=options.property or case.case.target))
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        log = Path(scratch) / "engine.log"
        leg = case_leg(engine, case, Kind.BISECTED, log)
        ran = run_legs([leg], ONE, log)
    if ran.interrupted:
        raise KeyboardInterrupt
    said, console = ran.said[leg.label], Console(soft_wrap=True, highlight=False, markup=False)
    if said.undecided is not None or said.lacking is not None:
        raise CannotRunError(f"{engine.name}: {said.undecided or said.lacking}")
    if said.leftovers is None:
        what = (
            f"{case.case.target} is not violated" if case.case.target else "no property is violated"
        )
        others = [finding["property"] for finding in said.findings]
        also = f" (violated instead: {', '.join(others)})" if others else ""
        console.print(f"{engine.name}: {what}, so there is nothing to explain{also}")
        return OK
    console.print(f"{said.leftovers.target} on {said.runner} in {engine.name}")
    show(console, said.leftovers)
    return FINDING


def show(console: Console, leftovers: Leftovers) -> None:
    """Print every set of inputs that was given back, and the smallest that mends the property."""
    for names, violated in leftovers.tries:
        red = leftovers.target in violated
        mark = "[bold red]violated[/]" if red else "[green]passed[/]  "
        console.print(mark, end=" ", markup=True)
        console.print(f"{' + '.join(names) or 'nothing'} reset: {listed(violated)}")
    if leftovers.smallest is not None:
        console.print(f"smallest set: {' + '.join(leftovers.smallest)}")
    console.print(leftovers.cause or leftovers.no_cause)


def listed(violated: Collection[str]) -> str:
    """Return what is violated, in the order in which properties are listed."""
    return ", ".join(name for name in PROPERTIES if name in violated) or "nothing"
