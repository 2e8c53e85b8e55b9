"""One engine's trial, in a process of its own: `python -m harness.engines.trial`.

Takes a request file and writes an answer file, both JSON. A part of the engine that is
missing or has moved costs its own leg of the trial, and is said in one sentence.
"""

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.checks.of_schedules.dense_agreement import sample_error
from harness.checks.play import Lockstep
from harness.checks.property import judge
from harness.checks.table import PROPERTIES, STEP_PROPERTIES
from harness.engines.adapters import (
    DECODING,
    PREFILLING,
    DecodingEngines,
    PrefillEngines,
    encoder_refusal,
    load,
)
from harness.engines.faults import Evidence, faults_shown
from harness.engines.legs import NONE, OURS, OWN, Leg, properties_json
from harness.engines.padding import PaddingLedger, tails_json
from harness.engines.playlist import (
    EXAMPLES,
    KERNELS,
    OWN_BOUND,
    PREFILL,
    PROMPTS,
    REUSING,
    SHRINKING,
    SHRINKING_FORWARDS,
    TRIALS,
)
from harness.engines.speculative import MISSING, SPECULATING, SpeculativeLeg, rules_asked
from harness.engines.windows import measure
from harness.lockstep.config import TrialConfig
from harness.lockstep.observation import Observation
from harness.records.case import Case, case_from_json
from harness.schedules.schedule import Schedule
from harness.schedules.traffic import traffic_schedules
from reference.batch import Mode
from reference.config import PRESETS
from reference.model import Model
from subjects.engines.sglang.engine import DecodingEngine, PrefillEngine
from subjects.engines.sglang.loading import Engine, message
from subjects.protocol import OwnArithmetic

EMULATED = (
    "the model: ours, of the shape named with each leg, around the engine's attention layers",
    "the scheduler: ours; slots come from the engine's allocator, rows from its request table",
    "the CPU runner's compiler and attention backend: its function runs uncompiled, over the"
    " engine's Triton backend",
    "the prefill and speculative runners' graphs: they are built without being captured, and"
    " their populate alone is tried",
    "the model runner and one process rank: stand-ins that hold settings and hand batches over",
)
EMULATED_ON_CPU = (
    "the CUDA graph: a tape of the captured calls, replayed with the same tensors",
    "Triton kernels: run by Triton's interpreter",
)
"""What is not the engine's."""


@dataclass
class Answer:
    """What a trial says, as JSON-able data."""

    legs: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    padding: list[dict[str, Any]] = field(default_factory=list)
    policies: list[dict[str, Any]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    stubs: list[str] = field(default_factory=list)
    emulated: list[str] = field(default_factory=list)
    assumed_off: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Session:
    """The legs of one engine's trial."""

    def __init__(self, engine: Engine, device: str, seed: int) -> None:
        self.engine = engine
        self.device = device
        self.seed = seed
        self.answer = Answer()
        self.asked: set[str] = set()
        self.evidence: dict[str, Evidence] = {}
        self.shrunk: list[Schedule] = []

    def run(self) -> Answer:
        """Run every leg and return the answer."""
        for trial in TRIALS:
            if self.device == "cpu" or DECODING[trial.runner].graphs:
                self.leg(f"{trial.runner} {trial.preset}", partial(self.decode, trial))
        self.leg("encoder", self.encoder)
        for name in PREFILLING:
            self.leg(name, partial(self.prefill, replace(PREFILL, runner=name)))
        for name in SPECULATING:
            self.leg(name, partial(self.speculate, replace(PREFILL, runner=name)))
        self.leg("kernels", self.kernels)
        answer = self.answer
        for evidence in self.evidence.values():
            answer.faults += [judged.to_json() for judged in evidence.judge()]
            answer.findings += evidence.findings()
        answer.stubs = sorted(self.engine.stubs.used)
        answer.modules = sorted(set(self.engine.modules))
        answer.emulated += [*EMULATED, *(EMULATED_ON_CPU if self.device == "cpu" else ())]
        answer.assumed_off = sorted(self.asked)
        return answer

    def leg(self, name: str, run: Callable[[], None]) -> None:
        """Run a leg; say in one sentence what of the engine has moved, if that ends it."""
        start = time.perf_counter()
        try:
            run()
        except Exception as error:  # An engine's code may fail in any way.
            self.answer.moved.append(f"{name}: {message(error)}")
            logging.exception(name)
        logging.info("%s: %.1f s", name, time.perf_counter() - start)

    def evidence_of(self, runner: str) -> Evidence:
        """Return what has been observed of a runner."""
        return self.evidence.setdefault(runner, Evidence(runner))

    def replay(self, case: Case) -> Answer:
        """Play the schedule of one case, and return the answer."""
        if case.trial.runner not in DECODING:
            valid = ", ".join(DECODING)
            raise ValueError(f"no case is of runner {case.trial.runner}; valid: {valid}")
        self.leg(case.trial.runner, partial(self._replay, case))
        return self.answer

    def _replay(self, case: Case) -> None:
        leg, _ = self._decoding(case.trial)
        target = set() if case.target is None else {case.target}
        leg.play(case.schedule, STEP_PROPERTIES | target)
        self.answer.legs.append(leg.to_json())

    def decode(self, trial: TrialConfig) -> None:
        """Try a runner of decodes with our arithmetic, bit by bit."""
        leg, subject = self._decoding(trial)
        ledger = leg.ledger = PaddingLedger(subject, leg.lockstep.pair)
        leg.play(SHRINKING, frozenset(PROPERTIES))
        config, most = leg.lockstep.pair.config, max(trial.buckets)
        for schedule in traffic_schedules(config, most, trial.room, EXAMPLES["traffic"], self.seed):
            leg.play(schedule)
        leg.play_drawn(self.seed, EXAMPLES["generated"])
        self.answer.findings += [f"{trial.runner}: {note}" for note in subject.notes()]
        self.answer.padding += [
            {**label(trial), "buffer": name, **entry.to_json()}
            for name, entry in ledger.entries.items()
        ]
        self.answer.policies = self.answer.policies or ledger.policies()
        leg.ledger = None
        self.answer.cases += [
            case.to_json() for case in leg.cases(self.seed, SHRINKING_FORWARDS, self.shrunk)
        ]
        self.answer.legs.append(leg.to_json())

    def _decoding(
        self, trial: TrialConfig, *, own_kernels: bool = False
    ) -> tuple[Leg, DecodingEngine]:
        """Return the leg of a runner of decodes, and that runner as engine under test."""
        engines = DecodingEngines(self.engine, own_kernels, self.asked)
        lockstep = Lockstep(replace(trial, device=self.device), engines=engines)
        subject = lockstep.pair.subject
        assert isinstance(subject, DecodingEngine)
        arithmetic = OWN if own_kernels else OURS
        return Leg(lockstep, self.evidence_of(trial.runner), arithmetic), subject

    def encoder(self) -> None:
        """Say whether a model with windows can have an encoder and its lengths."""
        trial = replace(PREFILL, device=self.device)
        refused = encoder_refusal(self.engine, self._model(trial), trial)
        verdict = f"never exists beside windows: {refused}" if refused else "not decided"
        self.answer.padding.append(
            {
                **label(replace(PREFILL, runner="decode")),
                "buffer": "encoder_lens",
                "dtype": "",
                "disturbed": 0,
                "outlived": 0,
                "moved": 0,
                "message": None,
                "verdict": verdict,
            }
        )

    def prefill(self, trial: TrialConfig) -> None:
        """Try what a prefill runner populates."""
        lockstep = self._prefill_lockstep(replace(trial, device=self.device))
        subject = lockstep.pair.subject
        assert isinstance(subject, PrefillEngine)
        leg = Leg(lockstep, self.evidence_of(trial.runner), NONE, captured=False)
        leg.play(PROMPTS, frozenset(PROPERTIES))
        if not leg.result.padded_replays:
            raise RuntimeError("no prefill was padded")
        self.answer.padding += [{**label(trial), **entry} for entry in tails_json(subject.tails)]
        self.answer.legs.append(leg.to_json())

    def _prefill_lockstep(self, trial: TrialConfig) -> Lockstep:
        """Return a pair with a prefill runner, which shares static buffers where it can."""
        try:
            return Lockstep(
                trial, engines=PrefillEngines(self.engine, shares=True, asked=self.asked)
            )
        except AssertionError as error:
            self.answer.findings.append(
                f"{trial.runner} cannot be built beside the runners before it: {error}"
            )
            return Lockstep(
                trial, engines=PrefillEngines(self.engine, shares=False, asked=self.asked)
            )

    def speculate(self, trial: TrialConfig) -> None:
        """Try which slots the rows that a speculative runner hands to attention would read."""
        start, name = time.perf_counter(), trial.runner
        trial = replace(trial, device=self.device)
        rules, unasked = rules_asked(MISSING)
        asked = [rule.id for rule in rules]
        evidence, padded, places = self.evidence_of(name), 0, 0
        failing: dict[str, tuple[Any, str]] = {}
        for observation in SpeculativeLeg(self.engine, trial, self.asked).observations():
            replay = observation.replay
            assert replay is not None
            places, padded = places + 1, padded + replay.padded
            evidence.see(observation, asked)
            for violation in judge(rules, observation):
                said = f"{replay.live_size} live rows of {replay.bucket}: {violation.message}"
                shown = faults_shown(violation.property, observation)
                evidence.add(violation.property, said, shown)
                failing.setdefault(violation.property, (None, said))
        if not padded:
            raise RuntimeError("no batch was padded")
        self.answer.legs.append(
            {
                **label(trial),
                "arithmetic": NONE,
                "captured": False,
                "schedules": 1,
                "steps": places,
                "replays": places,
                "padded": padded,
                "events": {},
                "properties": properties_json(
                    dict.fromkeys(asked, 1), dict.fromkeys(failing, 1), failing
                ),
                "unasked": unasked,
                "seconds": time.perf_counter() - start,
            }
        )

    def kernels(self) -> None:
        """Try the decode runner with the engine's own kernels, against the dense oracle."""
        leg, subject = self._decoding(KERNELS, own_kernels=True)
        pair = leg.lockstep.pair
        windows = measure(pair)
        subject.arithmetic = OwnArithmetic(windows, OWN_BOUND[self.device])
        errors: list[float] = []

        def hold_against_oracle(observation: Observation) -> None:
            errors.extend(
                sample_error(pair.models, sample)
                for sample in observation.samples
                if sample.arithmetic is not None
            )

        leg.observer = hold_against_oracle
        leg.play(REUSING, STEP_PROPERTIES | {"dense_agreement"})
        self.answer.findings += [
            f"told a window of {pair.config.window}, the engine's own attention sees"
            f" {windows[Mode.DECODE]} keys on decode and {windows[Mode.EXTEND]} on extend",
            f"with the engine's own kernels, live logits are off the dense oracle by up to"
            f" {max(errors):.2g}; the bound is {OWN_BOUND[self.device]:g}",
        ]
        if "dense_agreement" in leg.failing:
            said = leg.failing["dense_agreement"][1]
            self.answer.findings.append(f"with the engine's own kernels, {said}")
        self.answer.legs.append(leg.to_json())

    def _model(self, trial: TrialConfig) -> Model:
        """Return a trial's target model."""
        return Model(PRESETS[trial.preset].tiny, torch.float32, torch.device(trial.device))


def label(trial: TrialConfig) -> dict[str, Any]:
    """Return what names a leg."""
    return {"runner": trial.runner, "preset": trial.preset, "page_size": trial.page_size}


def main(arguments: list[str]) -> int:
    """Run the trial of a request file and write its answer."""
    request = json.loads(Path(arguments[0]).read_text())
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.INFO)
    start = time.perf_counter()
    engine = load(Path(request["package"]), Path(request["dependencies"]), request["device"])
    session, case = Session(engine, request["device"], request["seed"]), request["case"]
    answer = session.run() if case is None else session.replay(case_from_json(case, "the case"))
    answer.seconds = time.perf_counter() - start
    Path(arguments[1]).write_text(json.dumps(asdict(answer)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
