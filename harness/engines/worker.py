"""One leg of an engine's trial, in a process that has loaded that engine and no other.

A part of the engine that is missing or has moved costs its leg alone, which is then undecided,
in one sentence; the traceback goes to the log.
"""

import importlib
import logging
import os
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from paritybit.harness.checks.of_schedules.dense_agreement import sample_error
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STATE_PROPERTIES, STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import SGLANG
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.explained.counterexample import Counterexample
from paritybit.harness.engines.faults import Evidence, Finding, present
from paritybit.harness.engines.legs import EAGERLY, OURS, OWN, Leg, names_a_part, reason_of
from paritybit.harness.engines.localise import GivingBack, Leftovers
from paritybit.harness.engines.padding import PaddingLedger
from paritybit.harness.engines.playlist import (
    FIRST,
    OWN_BOUND,
    REUSING,
    SHRINKING_FORWARDS,
    Kind,
)
from paritybit.harness.engines.progress import SoFar, Teller
from paritybit.harness.engines.windows import measure, window_findings
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.records.case import Case
from paritybit.subjects.engines.shared.engine import TriedEngine
from paritybit.subjects.engines.shared.loading import Engine, message
from paritybit.subjects.engines.shared.missing import RunnerLackingError
from paritybit.subjects.protocol import OwnArithmetic


@dataclass(frozen=True)
class LegTask:
    """A piece of work: one leg of a trial of an engine, whose package lies in a folder.

    `examples` counts its schedules of traffic and drawn ones, `steps` instead those of a piece
    of a soak. With a `case` that alone is played. What the engine prints goes to `log`,
    progress to `progress`.
    """

    package: str
    dependencies: str
    device: str
    runner: str
    preset: str
    kind: Kind
    seed: int
    examples: int
    log: str
    progress: str
    case: Case | None = None
    steps: int = 0
    engine: str = SGLANG.name

    @property
    def label(self) -> str:
        """What the leg is called."""
        further = {
            Kind.OWN_EAGER: ", its own eager mode",
            Kind.OWN_KERNELS: ", its own kernels",
            Kind.SOAKED: f", seed {self.seed}",
        }
        return f"{self.runner} {self.preset}{further.get(self.kind, '')}"

    @property
    def planned(self) -> tuple[int, str]:
        """How much it is to play, and of what."""
        if self.kind is Kind.SOAKED:
            return self.steps, "steps"
        return self.examples + 1 if self.kind is Kind.REPLAYED else 1, "schedules"


@dataclass
class LegAnswer:
    """What a leg says. `undecided` says why it settles nothing, if it does not.

    `lacking` says instead why the engine has no such runner. `leftovers` is what the bisection
    of a case found; None where the case is clean.
    """

    leg: str
    runner: str
    preset: str
    undecided: str | None = None
    lacking: str | None = None
    played: dict[str, Any] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    padding: list[dict[str, Any]] = field(default_factory=list)
    policies: list[dict[str, Any]] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    counterexamples: list[Counterexample] = field(default_factory=list)
    stubs: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    assumed_off: list[str] = field(default_factory=list)
    leftovers: Leftovers | None = None

    @property
    def spoiled(self) -> bool:
        """Whether its process must not run another leg: what failed may have left anything."""
        return self.undecided is not None or self.lacking is not None

    def label(self) -> dict[str, Any]:
        """Return what names a leg in a row of a table."""
        return {"runner": self.runner, "preset": self.preset}


def run_leg(task: LegTask) -> LegAnswer:
    """Run one leg. What goes wrong in the engine's code makes it undecided."""
    _print_to(task.log)
    engine = _engine(task.engine, task.package, task.dependencies, task.device)
    session = _Session(engine, task)
    try:
        session.run()
    except RunnerLackingError as error:
        session.answer.lacking = str(error)
    except Exception as error:  # An engine's code may fail in any way.
        logging.error("%s: %s", task.label, traceback_of(error))
        session.keep(error)
        session.answer.undecided = reason_of(error)
    answer = session.answer
    answer.stubs, answer.modules = sorted(engine.stubs.used), sorted(set(engine.modules))
    answer.assumed_off = sorted(session.asked)
    return answer


@lru_cache(maxsize=1)
def _engine(name: str, package: str, dependencies: str, device: str) -> Engine:
    """Return the engine of this process, loaded once."""
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.INFO)
    engine = ADAPTERS[name].load(Path(package), Path(dependencies), device)
    # Its own lock is a semaphore of the system, which a process that is ended leaves behind.
    with suppress(ModuleNotFoundError):  # Without it, the engine's first part says so.
        importlib.import_module("tqdm").tqdm.set_lock(threading.RLock())
    return engine


@lru_cache(maxsize=1)
def _print_to(log: str) -> None:
    """Let all that this process prints go to a file, which other processes append to as well."""
    sys.stdout.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


class _Session:
    """The work of one leg."""

    def __init__(self, engine: Engine, task: LegTask) -> None:
        self.engine = engine
        self.task = task
        self.adapter = ADAPTERS[task.engine]
        self.trial = self.adapter.trial_of(task.runner, task.preset, task.kind, task.device)
        self.evidence = Evidence(task.runner, self.adapter.faults)
        self.asked: set[str] = set()
        self.answer = LegAnswer(task.label, task.runner, task.preset)
        self.refused: str | None = None
        self.kept: Leg | None = None

    def run(self) -> None:
        """Run the leg, whichever its kind."""
        case, kind = self.task.case, self.task.kind
        if case is not None and kind is Kind.BISECTED:
            self._bisect(case)
        elif case is not None:
            self._replay(case)
        elif kind is Kind.SOAKED:
            self._soak()
        elif kind is Kind.REPLAYED:
            self._replayed()
        elif kind is Kind.OWN_EAGER:
            self._own_eager()
        else:
            self._own_kernels()

    def _finish(self, leg: Leg, listed: list[Finding] | None = None) -> None:
        """Book what a leg was played for; one that replayed nothing padded settles nothing."""
        self._book(leg, listed)
        if not leg.result.padded_replays:
            self.answer.undecided = "no padded replay was played"

    def _book(self, leg: Leg, listed: list[Finding] | None = None) -> None:
        """Book what a leg has played and found."""
        self.answer.faults = [judged.to_json() for judged in self.evidence.judge()]
        self.answer.findings = self._findings(leg, listed)
        self.answer.played = leg.to_json()

    def _findings(self, leg: Leg, listed: list[Finding] | None = None) -> list[dict[str, Any]]:
        """Return what a leg has found, as JSON data."""
        found = [*leg.findings(), *(listed or []), *self._refusal()]
        return [finding.to_json() for finding in found]

    def _so_far(self, leg: Leg) -> SoFar:
        """Return what a leg has found by now; nothing is played for it."""
        return SoFar(
            findings=self._findings(leg),
            faults=present([judged.to_json() for judged in self.evidence.judge()]),
            cases=[case.to_json() for case in leg.unshrunk(self.task.seed)],
        )

    def _refusal(self) -> list[Finding]:
        """Return that the engine refused to build the runner beside another, if it did.

        A fault class that the leg shows of what is bound to the graph explains it.
        """
        if self.refused is None:
            return []
        contract = "index_contract"
        shown = tuple(
            name for name in self.evidence.shown if contract in self.adapter.faults[name].properties
        )
        return [Finding(self.task.runner, self.task.preset, contract, self.refused, shown)]

    def _leg(self, lockstep: Lockstep, arithmetic: str = OURS) -> Leg:
        """Return the leg of a pair."""
        leg = Leg(lockstep, self.evidence, arithmetic)
        teller = Teller(
            Path(self.task.progress), self.task.label, *self.task.planned, lambda: self._so_far(leg)
        )
        leg.tell = lambda _: teller.tell(leg.result, leg.failing, self.evidence.shown)
        return leg

    def _lockstep(self, trial: TrialConfig) -> Lockstep:
        """Return a pair with the runner, whose static buffers are its own."""
        lockstep, note = self.adapter.lockstep(self.engine, trial, self.asked)
        if note is not None:
            self.answer.notes.append(note)
        return lockstep

    def _beside_decode(self) -> Lockstep:
        """Return a pair with the runner built beside the decode runner, if it shares its buffers.

        Where the engine refuses that, which is a finding, it is built alone.
        """
        try:
            sharing = self.adapter.sharing(self.engine, self.trial, self.asked)
        except AssertionError as error:
            self.refused = f"it cannot be built alongside the decode runner: {message(error)}"
            sharing = None
        return sharing or self._lockstep(self.trial)

    def _replay(self, case: Case) -> Leg:
        """Play the schedule of one case."""
        leg = self._leg(self._lockstep(case.trial))
        target = set() if case.target is None else {case.target}
        leg.play(case.schedule, STEP_PROPERTIES | target)
        self._finish(leg)
        self.answer.undecided = None if leg.result.replays else "the case replays nothing"
        return leg

    def _bisect(self, case: Case) -> None:
        """Play the schedule of one case; say which leftovers explain what it violates."""
        leg = self._replay(case)
        target = case.target or next(iter(leg.failing), None)
        if target not in leg.failing:
            return
        failing, _ = leg.failing[target]
        giving_back = GivingBack(leg.lockstep, failing, STEP_PROPERTIES | {target})
        self.answer.leftovers = giving_back.explain(target)
        if not self.answer.leftovers.reproduced:
            self.answer.undecided = (
                f"{target} was not violated again, so it depends on state from the first play"
            )

    def _soak(self) -> None:
        """Play one piece of a soak; shrink what fails."""
        leg = self.kept = self._leg(self._beside_decode())
        leg.play_steps(self.task.seed, self.task.steps)
        self.answer.cases = leg.cases(self.task.seed, SHRINKING_FORWARDS)
        self._book(leg)

    def keep(self, error: Exception) -> None:
        """Keep what schedules showed before an error ended the leg; no fault class is then absent.

        If the error is that a part of the engine is missing, what a soak showed alone is kept.
        """
        if self.kept and (self.task.kind is Kind.SOAKED or not names_a_part(error)):
            self._book(self.kept)
            self.answer.faults = present(self.answer.faults)
            self.answer.cases = self.kept.unshrunk(self.task.seed)

    def _replayed(self) -> None:
        """Play a runner with our arithmetic, bit by bit; shrink what fails."""
        task, answer = self.task, self.answer
        leg = self.kept = self._leg(self._beside_decode())
        subject = cast("TriedEngine", leg.lockstep.pair.subject)
        ledger = leg.ledger = PaddingLedger(subject, leg.lockstep.pair)
        leg.play(FIRST[task.runner], frozenset(PROPERTIES))
        if leg.failing and not leg.result.padded_replays:
            # The worlds diverged before anything was padded: what judges one alone goes on.
            leg.play(FIRST[task.runner], STEP_PROPERTIES - STATE_PROPERTIES)
        for schedule in leg.traffic(task.seed, task.examples // 2):
            leg.play(schedule)
        leg.play_drawn(task.seed, task.examples - task.examples // 2)
        answer.notes += subject.notes() + leg.notes()
        leg.ledger = None
        answer.padding = [
            {**self._label(), "buffer": name, **entry.to_json()}
            for name, entry in ledger.entries.items()
        ]
        if task.runner == "decode":
            answer.padding.append(self._encoder())
        answer.policies = [{**self._label(), **policy} for policy in ledger.policies()]
        for policy in answer.policies:
            if policy["holds"] == "no":
                said = f"declared {policy['declared']}, but its padding is {policy['observed']}"
                self.evidence.add("declared_padding", f"{policy['buffer']}: {said}", ())
        for name, entry in ledger.entries.items():
            if entry.moved:
                said = f"with other values in the padding of {name}, {entry.message}"
                self.evidence.add("padding_noninterference", said, ())
        answer.cases = leg.cases(task.seed, SHRINKING_FORWARDS)
        answer.counterexamples = leg.shown
        self._finish(leg)
        answer.undecided = answer.undecided or ledger.unknown_word()

    def _label(self) -> dict[str, Any]:
        return {**self.answer.label(), "page_size": self.trial.page_size}

    def _encoder(self) -> dict[str, Any]:
        """Say whether a model with windows can have an encoder and its lengths."""
        refused = self.adapter.without_encoder(self.engine, self.trial)
        return {
            **self._label(),
            "buffer": "encoder_lens",
            "dtype": "",
            "disturbed": 0,
            "outlived": 0,
            "moved": 0,
            "message": None,
            "verdict": f"cannot exist together with windows: {refused}"
            if refused
            else "not decided",
        }

    def _own_eager(self) -> None:
        """Play the first schedule in the engine's own eager mode, held against the reference.

        It replays nothing, so that it settles no fault class; replays have the reference's bits
        too, or are findings, so that both of the engine's modes are held against one another.
        """
        leg = self._leg(self.adapter.own_eager(self.engine, self.trial, self.asked), EAGERLY)
        leg.play(FIRST[self.task.runner], STEP_PROPERTIES)
        self._book(leg)
        self.answer.faults = []
        if not leg.result.steps:
            self.answer.undecided = "the engine's own eager mode played nothing"
        elif leg.result.replays:
            self.answer.undecided = "the engine's own eager mode replayed a graph"

    def _own_kernels(self) -> None:
        """Try the decode runner with the engine's own kernels, against the dense oracle."""
        leg = self._leg(self.adapter.own_kernels(self.engine, self.trial, self.asked), OWN)
        pair = leg.lockstep.pair
        seen, bound = measure(pair), OWN_BOUND[self.task.device]
        windows, found = window_findings(self.trial, pair.config.window, seen)
        pair.subject.arithmetic = OwnArithmetic(windows, bound)
        errors: list[float] = []

        def hold_against_oracle(observation: Observation) -> None:
            errors.extend(
                sample_error(pair.models, sample)
                for sample in observation.samples
                if sample.arithmetic is not None
            )

        leg.observer = hold_against_oracle
        leg.play(REUSING, STEP_PROPERTIES | {"dense_agreement"})
        if errors:
            self.answer.notes.append(
                "with the engine's own kernels, live logits differ from the dense oracle "
                f"by up to {max(errors):.2g}; the tolerance is {bound:g}"
            )
        self._finish(leg, found)
