"""One engine's trial, in a process of its own: `python -m harness.engines.trial`.

Takes a request file and writes an answer file, both JSON. A part of the engine that is
missing or has moved costs its own leg of the trial and is told in one sentence.
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

from harness.campaigns.hunt import for_each_drawn
from harness.engines.faults import FAULTS, Observed
from harness.engines.kernels import BOUND, KernelPlay
from harness.engines.padding import policies
from harness.engines.pair import EngineArms, load
from harness.engines.play import EnginePlay, Played
from harness.engines.prefill import populate
from harness.engines.speculative import hand_over
from harness.lockstep.config import TrialConfig, trial_from_json
from harness.schedules.generate import schedules
from harness.schedules.schedule import Admit, Decode, Finish, Schedule, from_json, to_json
from harness.schedules.traffic import traffic_schedules
from reference.batch import Mode
from subjects.engines.sglang.decode import CpuGraphRunner, DecodeRunner, ReplayingRunner
from subjects.engines.sglang.loading import Engine, message
from subjects.engines.sglang.prefill import (
    BreakableRunner,
    PiecewiseRunner,
    PrefillRunner,
)
from subjects.engines.sglang.speculative import (
    EagleDraftExtendRunner,
    EagleDraftRunner,
    FrozenKvMtpRunner,
    SpeculativeRunner,
)

SETTINGS: dict[type[ReplayingRunner], tuple[TrialConfig, ...]] = {
    DecodeRunner: (
        TrialConfig(preset="gpt_oss", page_size=1),
        TrialConfig(preset="gemma3", page_size=4),
    ),
    CpuGraphRunner: (TrialConfig(preset="mimo", page_size=1),),
}
"""The trials of each runner: model and page size."""

EXAMPLES = {"traffic": 2, "generated": 2}
"""Schedules of each source in each trial."""

SHRINKING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 5, 7, 9)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2)),
        Finish(3),
        Admit(4, 24),
        Decode((0, 1, 2)),
        Decode((3, 2, 1)),
    )
)
"""A batch fills its bucket and shrinks while the request that left it keeps its KV."""


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

PREFILL = TrialConfig(preset="mimo")
KERNELS = TrialConfig(preset="gpt_oss", full_slots=40, swa_slots=36, rows=8, buckets=(2, 4))
"""The trials of the prefill runners, and of the engine's own kernels: little room, slots reused."""

REUSING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 5, 7, 12)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        Finish(3),
        Finish(2),
        Admit(6, 24),
        Decode((0, 1, 2)),
        Decode((0, 1, 2)),
        Decode((0, 1, 2)),
    )
)
"""Four decode, two finish, their slots are given out again, three decode in a bucket of four."""


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
        self.observed: dict[str, Observed] = {}

    def run(self) -> Answer:
        """Run every leg and return the answer."""
        for runner, trials in SETTINGS.items():
            for trial in trials if runner.graphs or self.device == "cpu" else ():
                self.leg(f"{runner.name} {trial.preset}", partial(self.decode, runner, trial))
        self.leg("encoder", self.encoder)
        for prefill in (PiecewiseRunner, BreakableRunner):
            self.leg(prefill.name, partial(self.prefill, prefill))
        for speculative in (EagleDraftRunner, EagleDraftExtendRunner, FrozenKvMtpRunner):
            self.leg(speculative.name, partial(self.speculate, speculative))
        self.leg("kernels", self.kernels)
        answer = self.answer
        answer.faults = [
            judged.to_json() for each in self.observed.values() for judged in each.judge()
        ]
        answer.stubs = sorted(self.engine.stubs.used)
        answer.modules = sorted(set(self.engine.modules))
        answer.emulated += [*EMULATED, *(EMULATED_ON_CPU if self.device == "cpu" else ())]
        answer.assumed_off = sorted(self.asked)
        return answer

    def leg(self, name: str, run: Callable[[], None]) -> None:
        """Run a leg; tell in one sentence what of the engine has moved, if that ends it."""
        start = time.perf_counter()
        try:
            run()
        except Exception as error:  # An engine's code may fail in any way.
            self.answer.moved.append(f"{name}: {message(error)}")
            logging.exception(name)
        logging.info("%s: %.1f s", name, time.perf_counter() - start)

    def of(self, runner: str, *faults: str) -> Observed:
        """Return what is observed of a runner; all faults can be shown if none are named."""
        return self.observed.setdefault(runner, Observed(runner, faults or tuple(FAULTS)))

    def replay(self, runner: str, trial: TrialConfig, schedule: Schedule) -> Answer:
        """Play one schedule on a runner of decodes, by its name, and return the answer."""
        kinds = {each.name: each for each in SETTINGS}
        if runner not in kinds:
            raise ValueError(f"no case is of runner {runner}; valid: {', '.join(kinds)}")
        self.leg(runner, partial(self.decode, kinds[runner], trial, schedule))
        return self.answer

    def decode(
        self, runner: type[ReplayingRunner], trial: TrialConfig, alone: Schedule | None = None
    ) -> None:
        """Try a runner of decodes with our arithmetic, bit by bit; on one schedule if given."""
        start = time.perf_counter()
        pair = EngineArms(self.engine, replace(trial, device=self.device), runner)
        self.asked |= pair.host.asked
        play = EnginePlay(pair)
        play.play(alone or SHRINKING)
        if alone is None:
            self._play_many(play)
        observed = self.of(runner.name)
        observe(observed, play.played)
        for dtype in pair.captured_dtypes:
            right = pair.sglang.translate(pair.sglang.held(0, 0, 1)).dtype
            wrong = f"the captured SWA store is given {dtype}; the pool translates to {right}"
            observed.add("swa_int64", wrong if dtype != right else None)
        label = {"runner": runner.name, "preset": trial.preset, "page_size": trial.page_size}
        self.answer.legs.append(
            {
                **label,
                "arithmetic": "ours, bits compared",
                **played_json(play.played),
                "seconds": time.perf_counter() - start,
            }
        )
        if getattr(pair.runner, "left_behind", False):
            self.answer.findings.append(
                f"{runner.name}: the SWA locations that an eager forward preset are still set when"
                " a batch is replayed; they were cleared before each replay here"
            )
        self.answer.padding += [
            {
                **label,
                "buffer": name,
                **asdict(entry),
                "left": sorted(entry.left),
                "verdict": entry.verdict,
            }
            for name, entry in play.padding.entries.items()
        ]

        self.answer.policies = self.answer.policies or policies(pair.runner, play.padding)
        self.answer.cases += [
            {
                "runner": runner.name,
                "trial": pair.trial.to_json(),
                "schedule": to_json(schedule),
                "target": name,
                "message": str(play.played.seen[name].message),
            }
            for name, schedule in play.failing.items()
        ]

    def _play_many(self, play: EnginePlay) -> None:
        """Play traffic and generated schedules."""
        pair, trial = play.pair, play.pair.trial
        most = max(trial.buckets)
        for schedule in traffic_schedules(
            pair.config, most, trial.room, EXAMPLES["traffic"], self.seed
        ):
            play.play(schedule)
        drawn = schedules(pair.config, most, frozenset({Mode.DECODE}), Mode.DECODE)
        for_each_drawn(drawn, play.play, self.seed, EXAMPLES["generated"])

    def encoder(self) -> None:
        """Say whether a model with windows can have an encoder and its lengths."""
        pair = EngineArms(self.engine, replace(PREFILL, device=self.device), PiecewiseRunner)
        pair.host.encoder_decoder = True
        try:
            DecodeRunner(pair.host, pair.model, pair.sglang, pair.trial.ops(), own_kernels=False)
        except AssertionError as error:
            verdict = f"never exists beside windows: {message(error)}"
        else:
            verdict = "not decided"
        self.answer.padding.append(
            {
                "runner": "decode",
                "preset": PREFILL.preset,
                "page_size": PREFILL.page_size,
                "buffer": "encoder_lens",
                "dtype": "",
                "disturbed": 0,
                "outlived": 0,
                "moved": 0,
                "message": None,
                "verdict": verdict,
            }
        )

    def prefill(self, runner: type[PrefillRunner]) -> None:
        """Try what a prefill runner populates."""
        trial = replace(PREFILL, device=self.device)
        try:
            pair = EngineArms(self.engine, trial, runner, shares=True)
        except AssertionError as error:
            self.answer.findings.append(
                f"{runner.name} cannot be built beside the runners before it: {error}"
            )
            pair = EngineArms(self.engine, trial, runner)
        self.asked |= pair.host.asked
        padded, entries = populate(pair, self.of(runner.name, "swa_int64"))
        if not padded:
            raise RuntimeError("no prefill was padded")
        label = {"runner": runner.name, "preset": PREFILL.preset, "page_size": PREFILL.page_size}
        self.answer.padding += [{**label, **each} for each in entries]

    def speculate(self, runner: type[SpeculativeRunner]) -> None:
        """Try which rows a speculative runner hands to attention."""
        pair = EngineArms(self.engine, replace(PREFILL, device=self.device), runner)
        self.asked |= pair.host.asked
        if not hand_over(pair, self.of(runner.name, "req_pool_pad")):
            raise RuntimeError("no batch was padded")

    def kernels(self) -> None:
        """Try the decode runner with the engine's own kernels, against the dense oracle."""
        start = time.perf_counter()
        trial = replace(KERNELS, device=self.device)
        pair = EngineArms(self.engine, trial, own_kernels=True)
        play = KernelPlay(pair)
        windows = play.measure()
        play.play(REUSING)
        told_of = f"told a window of {pair.config.window}, the engine's own attention sees"
        self.answer.findings.append(
            f"{told_of} {windows['decode']} keys on decode and {windows['extend']} on extend"
        )
        observe(self.of("decode"), play.played)
        off = play.played.seen["dense_agreement"]
        self.answer.findings.append(
            f"with the engine's own kernels, live logits are off the dense oracle by up to"
            f" {play.worst:.2g}; the bound is {BOUND[self.device]:g}"
        )
        if off.message is not None:
            self.answer.findings.append(f"with the engine's own kernels, {off.message}")
        self.answer.legs.append(
            {
                "runner": "decode",
                "preset": trial.preset,
                "page_size": trial.page_size,
                "arithmetic": "the engine's Triton attention, against the dense oracle",
                **played_json(play.played),
                "seconds": time.perf_counter() - start,
            }
        )


def observe(observed: Observed, played: Played) -> None:
    """Count what a played leg says of the faults that show in padded replays."""
    for fault, name in (("swa_pad", "write_frame"), ("req_pool_pad", "hermetic_reads")):
        seen = played.seen.get(name)
        if seen is not None and played.padded:
            observed.add(fault, seen.message, played.padded)


def played_json(played: Played) -> dict[str, Any]:
    """Return the counts of a leg as JSON data."""
    data = asdict(played)
    return {**data, "events": dict(played.events)}


def main(arguments: list[str]) -> int:
    """Run the trial of a request file and write its answer."""
    request = json.loads(Path(arguments[0]).read_text())
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.INFO)
    start = time.perf_counter()
    engine = load(Path(request["package"]), Path(request["dependencies"]), request["device"])
    session, case = Session(engine, request["device"], request["seed"]), request["case"]
    if case is None:
        answer = session.run()
    else:
        trial, schedule = trial_from_json(case["trial"]), from_json(case["schedule"])
        answer = session.replay(case["runner"], trial, schedule)
    answer.seconds = time.perf_counter() - start
    Path(arguments[1]).write_text(json.dumps(asdict(answer)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
