"""One leg of an engine's trial: a runner played by a pair, judged, and what failed shrunk."""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from paritybit.harness.campaigns.hunt import (
    EnoughDrawn,
    HuntResult,
    PlayingFailedError,
    draw,
    whole,
)
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES, STATE_PROPERTIES, STEP_PROPERTIES
from paritybit.harness.engines import statics
from paritybit.harness.engines.explained.counterexample import Counterexample, counterexample
from paritybit.harness.engines.faults import Evidence, Finding, faults_shown
from paritybit.harness.engines.localise import GivingBack
from paritybit.harness.engines.padding import RUN, PaddingLedger
from paritybit.harness.engines.playlist import TRAFFIC_OF_A_PIECE
from paritybit.harness.errors import headline
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import ExtraRun
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.harness.schedules.shrink import shrink
from paritybit.harness.schedules.traffic import traffic_schedules
from paritybit.subjects.engines.shared import missing
from paritybit.subjects.engines.shared.loading import message
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.protocol import Offer
from paritybit.subjects.runners import RUNNERS

OURS = "ours, bits compared"
EAGERLY = "ours, bits compared, in the engine's own eager mode"
OWN = "the engine's Triton attention, against the dense oracle"
"""Whose the arithmetic of a leg is."""

SAID_FIRST = {OURS: "", EAGERLY: "in the engine's own eager mode, ", OWN: "with its own kernels, "}
"""What is said before a finding, by the arithmetic of its leg."""


def unheard(outcome: Outcome) -> None:
    """Tell nobody of a schedule that was played."""


@dataclass
class Leg:
    """A pair with an engine's runner, and what playing schedules on it gave.

    `ledger` disturbs padding at each padded replay. `asked` counts the schedules in which each
    property was asked, `failing` holds the first that violated it, up to where it did. `tell`
    is called after each schedule.
    """

    lockstep: Lockstep
    evidence: Evidence
    arithmetic: str
    ledger: PaddingLedger | None = None
    tell: Callable[[Outcome], None] = unheard
    result: HuntResult = field(default_factory=HuntResult)
    asked: Counter[str] = field(default_factory=Counter)
    failing: dict[str, tuple[Schedule, str]] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    shown: list[Counterexample] = field(default_factory=list)
    judged: statics.Judged = field(default_factory=statics.Judged)
    observer: Callable[[Observation], None] | None = None
    started: float = field(default_factory=time.perf_counter)

    def play(self, schedule: Schedule, properties: Collection[str] = STEP_PROPERTIES) -> None:
        """Play a schedule, judged by some properties, and book what it violates.

        Raises PlayingFailedError for an error that is not the engine's own.
        """
        lockstep, ledger = self.lockstep, self.ledger
        lockstep.watch(properties)
        asked = frozenset(properties) - lockstep.unasked.keys()
        places, showing, told = dict[str, str](), dict[str, list[str]](), self.evidence.faults

        def see(
            place: int, step: Step, observation: Observation | None, violated: frozenset[str]
        ) -> None:
            if observation is None:
                return
            places.update(dict.fromkeys(violated, f"step {place} ({step.name})"))
            showing.update({name: faults_shown(name, observation, told) for name in violated})
            self.evidence.see(observation, asked)
            self.judged.see(observation)
            if self.observer is not None:
                self.observer(observation)
            if ledger is not None:
                ledger.see(observation)

        extra_runs: dict[str, ExtraRun] = {statics.RUN: statics.held_before}
        if ledger is not None:
            extra_runs[RUN] = ledger.disturb
        outcome = whole(lockstep.play(schedule, see, extra_runs=extra_runs))
        self.result.add(outcome)
        self.asked.update(asked)
        self.evidence.asked |= asked
        for violation in outcome.violations:
            name = violation.property
            message = f"{places.get(name, 'at the end')}: {violation.message}"
            self.evidence.add(name, message, showing.get(name, ()))
            # What comes after the violation has no part in it.
            failing = schedule.up_to(violation.step) if name in places else schedule
            self.failing.setdefault(name, (failing, message))
        self.tell(outcome)

    def play_drawn(self, seed: int, examples: int) -> None:
        """Play schedules that the hunter draws."""
        draw(self.lockstep, self.play, seed, examples)

    def play_steps(self, seed: int, steps: int) -> None:
        """Play whole schedules until so many steps are played: half drawn, then of traffic.

        Fewer are played only where there are no more schedules.
        """

        def play(schedule: Schedule) -> None:
            if self.result.steps * 2 >= steps:
                raise EnoughDrawn
            self.play(schedule)

        with suppress(EnoughDrawn):
            draw(self.lockstep, play, seed, steps)
        for schedule in self.traffic(seed, TRAFFIC_OF_A_PIECE):
            if self.result.steps >= steps:
                break
            self.play(schedule)

    def traffic(self, seed: int, count: int) -> list[Schedule]:
        """Return schedules of traffic that drive the runner."""
        pair, trial = self.lockstep.pair, self.lockstep.trial
        mode = RUNNERS[trial.runner].mode
        return traffic_schedules(pair.config, max(trial.buckets), trial.room, count, seed, mode)

    def findings(self) -> list[Finding]:
        """Return every violated property as a finding, with its cause where one was proved."""
        first = SAID_FIRST[self.arithmetic]
        return [
            replace(one, message=first + one.message, cause=self.causes.get(one.property))
            for one in self.evidence.findings(self.lockstep.trial.preset)
        ]

    def notes(self) -> list[str]:
        """Return, in words, which static inputs no property judges by themselves."""
        entries = {} if self.ledger is None else self.ledger.entries
        return self.judged.notes([name for name, one in entries.items() if one.disturbed])

    def cases(self, seed: int, most_forwards: int) -> list[Case]:
        """Return a case of each violated property: its first failing schedule, shrunk.

        So many forwards at most are spent on each; a schedule shrunk for another property that
        violates this one too is taken as it is. What caused it is looked for in the case, which
        is played once more for what a page shows of it, `shown`.
        """
        found, known = list[Case](), list[Schedule]()
        giving = dict[tuple[Schedule, frozenset[str]], GivingBack]()
        shortest_first = sorted(self.failing.items(), key=lambda item: len(item[1][0].steps))
        for target, (schedule, _) in shortest_first:
            fails = self._fails(target, most_forwards)
            smallest = next((one for one in known if fails(one)), None)
            if smallest is None:
                smallest = shrink(schedule, fails)
                known.append(smallest)
            watched = STEP_PROPERTIES | {target}
            self.lockstep.watch(watched)
            violations = whole(self.lockstep.play(smallest)).violations
            recorded = tuple(violation.to_json() for violation in violations)
            found.append(Case(self.lockstep.trial, smallest, target, seed, recorded))
            places = [one.step for one in violations if one.property == target]
            blamed: tuple[str, ...] = ()
            if places and Offer.FRESH_ENGINE not in self.lockstep.pair.subject.missing:
                failing = smallest.up_to(places[0])
                giving_back = giving.setdefault(
                    (failing, watched), GivingBack(self.lockstep, failing, watched)
                )
                leftovers = giving_back.explain(target)
                if leftovers.cause is not None:
                    self.causes[target] = leftovers.cause
                blamed = leftovers.smallest or ()
            self.lockstep.watch(watched)
            self.shown.append(counterexample(self.lockstep, found[-1], blamed))
        return found

    def unshrunk(self, seed: int) -> list[Case]:
        """Return a case of each violated property as it was drawn: nothing is played for it."""
        return [
            Case(self.lockstep.trial, schedule, target, seed, ())
            for target, (schedule, _) in self.failing.items()
        ]

    def _fails(self, target: str, most_forwards: int) -> Callable[[Schedule], bool]:
        """Return whether a schedule violates `target`: never, once all forwards are spent.

        None is played twice.
        """
        left = most_forwards
        played: dict[Schedule, bool] = {}
        watched = STATE_PROPERTIES | {target}

        def fails(schedule: Schedule) -> bool:
            nonlocal left
            if schedule not in played and left > 0:
                self.lockstep.watch(watched)
                outcome = whole(self.lockstep.play(schedule, until=(target,)))
                left -= outcome.steps * (1 if PROPERTIES[target].extra_run is None else 2)
                played[schedule] = target in outcome.violated
            return played.get(schedule, False)

        return fails

    def to_json(self) -> dict[str, Any]:
        """Return what was played and judged as JSON data."""
        trial, result = self.lockstep.trial, self.result
        return {
            "runner": trial.runner,
            "preset": trial.preset,
            "page_size": trial.page_size,
            "arithmetic": self.arithmetic,
            "schedules": result.schedules,
            "steps": result.steps,
            "replays": result.replays,
            "padded": result.padded_replays,
            "events": dict(result.events),
            "properties": properties_json(self.asked, result.violated, self.failing),
            "unasked": self.lockstep.unasked,
            "seconds": time.perf_counter() - self.started,
        }


def properties_json(
    asked: Mapping[str, int],
    violated: Mapping[str, int],
    failing: Mapping[str, tuple[Any, str]],
) -> dict[str, dict[str, Any]]:
    """Return, by property asked, in how many schedules it was, was violated, and how first."""
    return {
        name: {
            "asked": asked[name],
            "violated": violated.get(name, 0),
            "message": failing[name][1] if name in failing else None,
        }
        for name in PROPERTIES
        if asked.get(name)
    }


def names_a_part(error: Exception) -> bool:
    """Whether an error is that a part of the engine is missing, or ends a playing that met one."""
    if isinstance(error, PlayingFailedError):
        return headline(str(error)).startswith(f"{missing.__name__}.")
    return isinstance(error, PartMissingError)


def reason_of(error: Exception) -> str:
    """Return in one sentence why a leg settles nothing: what was raised, and where.

    What says itself which part of the engine is amiss is taken at its word.
    """
    if isinstance(error, SubjectFailedError):
        return f"a step failed: {error}"
    if not isinstance(error, PlayingFailedError):
        return message(error)
    said = headline(str(error))
    if names_a_part(error):
        return said.partition(": ")[2]
    places = re.findall(r'^  File "(?:[^"]*/)?([^"/]+)", line (\d+)', str(error), re.MULTILINE)
    return f"{said} ({places[-1][0]}, line {places[-1][1]})" if places else said
