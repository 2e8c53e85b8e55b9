"""Endurance of an engine: many steps of each of its runners, of drawn schedules and of traffic.

A runner's steps are played in pieces, each from a seed of its own, so that processes share
them; a piece alternates models where a runner is tried on several. What is asked at each step
is every property of steps that an engine can be asked. Padding is not disturbed besides, as a
trial does at each padded replay: that would take half as long again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.faults import Verdict
from paritybit.harness.engines.fetch import Found
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.engines.trial import (
    Answer,
    Follower,
    Ran,
    Settings,
    leg_of,
    planned,
    run_legs,
)
from paritybit.harness.engines.worker import LegAnswer, LegTask
from paritybit.harness.records.case import Case

PIECE_STEPS = 150
"""Steps of one piece at most: a minute or two. Every model of a runner has a piece at least."""


@dataclass
class Soaked:
    """What was played of a soak of `steps` of each runner, and what that gave."""

    steps: int
    first_seed: int
    named: tuple[str, ...]
    answer: Answer
    ran: Ran

    def pieces(self, runner: str) -> list[LegTask]:
        """Return the pieces of a runner's steps."""
        return [
            task for task in self.ran.tasks if (task.runner, task.kind) == (runner, Kind.SOAKED)
        ]


def soak(engine: Found, settings: Settings, steps: int, log: Path, follower: Follower) -> Soaked:
    """Play at least `steps` steps of each runner from the settings' seed on.

    Interrupted, it returns what was played until then.
    """
    answer = Answer()

    def legs_of(name: str) -> list[LegTask]:
        return pieces_of(name, engine, settings, steps, log)

    tasks = planned(answer, engine, settings, legs_of)
    ran = run_legs(tasks, settings.workers, log, follower)
    answer.take(ran, settings.device, engine.engine)
    return Soaked(steps, settings.seed, settings.runners, answer, ran)


def pieces_of(name: str, engine: Found, settings: Settings, steps: int, log: Path) -> list[LegTask]:
    """Return the pieces of a runner's steps, and the leg of its own kernels, if it has one."""
    runner = ADAPTERS[engine.engine].runners[name]
    presets = settings.presets or runner.presets
    count = max(len(presets), -(-steps // PIECE_STEPS))
    legs = [
        replace(
            leg_of(name, presets[place % len(presets)], Kind.SOAKED, engine, settings, log),
            seed=settings.seed + place,
            steps=-(-steps // count),
        )
        for place in range(count)
    ]
    if Kind.OWN_KERNELS in runner.kinds:
        legs.append(leg_of(name, presets[0], Kind.OWN_KERNELS, engine, settings, log))
    return legs


def figures(soaked: Soaked, name: str, folder: str) -> dict[str, Any]:
    """Return what a soak of the engine called `name` gave, as JSON data.

    `folder` is where the case files lie, as a record may name it.
    """
    answer = soaked.answer
    lacking = {entry["runner"] for entry in answer.lacking}
    tried = dict.fromkeys(task.runner for task in soaked.ran.tasks if task.runner not in lacking)
    rows = [row_of(soaked, runner) for runner in tried]
    found = [*findings(soaked, folder)]
    counted = [finding for finding in found if not finding["listed"]]
    undecided = [*open_legs(soaked), *short_of(soaked, rows)]
    verdict = Verdict.UNDECIDED if undecided or not rows else Verdict.ABSENT
    verdict = Verdict.PRESENT if counted else verdict
    return {
        "engine": name,
        "steps_of_each_runner": soaked.steps,
        "first_seed": soaked.first_seed,
        "properties": sorted(STEP_PROPERTIES),
        "runners": rows,
        "findings": counted,
        "listed": [finding for finding in found if finding["listed"]],
        "undecided": undecided,
        "lacking": answer.lacking,
        "legs": answer.legs,
        "notes": list(dict.fromkeys(answer.notes)),
        "stubs": answer.stubs,
        "emulated": answer.emulated,
        "assumed_off": answer.assumed_off,
        "seconds": round(answer.seconds, 1),
        "interrupted": answer.interrupted,
        "verdict": verdict,
        "message": sentence(name, rows, counted, undecided, interrupted=answer.interrupted),
    }


def row_of(soaked: Soaked, runner: str) -> dict[str, Any]:
    """Return what was really played of a runner, pieces that were interrupted included.

    `steps_per_second` are those of one process, building and capturing the runner apart; None
    where no piece has ended.
    """
    counts, events, seconds, ended = Counter[str](), Counter[str](), 0.0, 0
    for task in soaked.pieces(runner):
        said, heard = soaked.ran.said.get(task.label), soaked.ran.heard.get(task.label)
        if said is not None and said.played is not None:
            played = said.played
            counts.update({name: played[name] for name in COUNTED})
            events.update(played["events"])
            seconds += played["seconds"]
            ended += played["steps"]
        elif heard is not None:
            counts.update({name: getattr(heard, name) for name in COUNTED})
    pieces = soaked.pieces(runner)
    return {
        "runner": runner,
        "presets": list(dict.fromkeys(task.preset for task in pieces)),
        "seeds": [pieces[0].seed, pieces[-1].seed],
        **{name: counts[name] for name in COUNTED},
        "events": dict(sorted(events.items())),
        "seconds": round(seconds, 1),
        "steps_per_second": round(ended / seconds, 2) if seconds else None,
    }


COUNTED = ("schedules", "steps", "replays", "padded")
"""What is counted of each runner, beside the events that were reached."""


def findings(soaked: Soaked, folder: str) -> Iterator[dict[str, Any]]:
    """Yield every violation of every piece, with its seed and its case file, if it has one."""
    for task in soaked.ran.tasks:
        yield from findings_of(task, soaked.ran.said_by(task), folder)


def findings_of(task: LegTask, said: LegAnswer, folder: str) -> Iterator[dict[str, Any]]:
    """Yield what a leg found; `schedules` counts those that violated it, if the leg has ended."""
    played = said.played["properties"] if said.played is not None else None
    files = {case.target: f"{folder}/{case_name(case)}" for case in said.cases}
    for finding in said.findings:
        name = finding["property"]
        schedules = None if played is None else played.get(name, {}).get("violated", 0)
        yield {**finding, "seed": task.seed, "schedules": schedules, "case": files.get(name)}


def case_name(case: Case) -> str:
    """Return what the file of a case is called."""
    return f"{case.target}-{case.trial.runner}-{case.trial.preset}-{case.seed}.json"


def cases_of(engine: str, soaked: Soaked) -> dict[str, EngineCase]:
    """Return the cases that a soak found, by file name."""
    return {case_name(case): EngineCase(engine, case) for case in soaked.answer.cases}


def open_legs(soaked: Soaked) -> Iterator[dict[str, str]]:
    """Yield why legs settle nothing, apart from pieces that were interrupted.

    Of those the steps that a runner lacks are told.
    """
    cut = {
        task.label
        for task in soaked.ran.tasks
        if task.kind is Kind.SOAKED and task.label not in soaked.ran.said
    }
    yield from (entry for entry in soaked.answer.undecided if entry["leg"] not in cut)


def short_of(soaked: Soaked, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield why a runner that was tried, or was asked for by name, settles nothing."""
    for row in rows:
        runner, steps = row["runner"], row["steps"]
        if steps < soaked.steps:
            reason = f"only {steps} of {soaked.steps} steps were played"
            yield {"leg": runner, "runner": runner, "reason": reason}
        elif not row["padded"]:
            reason = "no padded replay was played"
            yield {"leg": runner, "runner": runner, "reason": reason}
    for lacking in soaked.answer.lacking:
        if lacking["runner"] in soaked.named:
            yield {"leg": lacking["runner"], **lacking}


def sentence(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    counted: Sequence[Mapping[str, Any]],
    undecided: Sequence[Mapping[str, str]],
    *,
    interrupted: bool,
) -> str:
    """Return what a soak came to, in one sentence: what was played, found, and is open."""
    steps, padded = (sum(row[what] for row in rows) for what in ("steps", "padded"))
    runners = ", ".join(row["runner"] for row in rows) or "no runner"
    kinds = dict.fromkeys(f"{one['property']} on {one['runner']}" for one in counted)
    return (
        f"{name}: {'interrupted; so far, ' if interrupted else ''}{steps} steps of {runners},"
        f" {padded} padded replays: {', '.join(kinds) or 'no difference found'}"
        + "".join(f"; undecided: {entry['leg']}: {entry['reason']}" for entry in undecided)
    )
