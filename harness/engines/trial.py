"""One engine's trial: its legs planned, spread over processes, and what they say put together."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from paritybit.harness.campaigns.executor import Campaign, Ended, execute
from paritybit.harness.engines.adapters.packages import DEPENDENCIES, PACKAGES, SGLANG
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.explained.counterexample import Counterexample
from paritybit.harness.engines.fetch import Found, dependencies_folder
from paritybit.harness.engines.playlist import EXAMPLES, Kind
from paritybit.harness.engines.progress import Played, after, listening
from paritybit.harness.engines.worker import LegAnswer, LegTask, run_leg
from paritybit.harness.errors import headline, known
from paritybit.harness.machine.workers import ONE, Workers
from paritybit.harness.records.case import Case, case_from_json
from paritybit.harness.records.files import read_bytes
from paritybit.reference.config import PRESETS
from paritybit.subjects.runners import RUNNERS

LEG_SECONDS = 600.0
SECONDS_PER_SCHEDULE = 60.0
SECONDS_PER_STEP = 10.0
"""How long a leg may take, and each of its schedules, or a soak's steps, besides: many times
what they do."""

VARIABLES = re.compile(
    "PATH|HOME|TMPDIR|TZ|LANG|LC_.*|TERM|PYTHON.*|VIRTUAL_ENV|LD_LIBRARY_PATH|XDG_CACHE_HOME"
    "|CUDA.*|NVIDIA.*|TORCH.*|TRITON.*|(OMP|MKL|KMP|GOMP|OPENBLAS)_.*|SGLANG_.*|PARITYBIT_.*"
)
"""The variables of the environment that an engine's code is given: none of them is a secret."""

EMULATED_ON_CPU = (
    "CUDA graphs. The calls are recorded on a tape and replayed with the same tensors.",
    "the compilation of Triton kernels. Triton's interpreter runs them.",
)
EMULATED_ON_GPU = (
    "code that the engine compiles for a GPU. The engine's Triton kernels run instead, or its "
    "own PyTorch code where it has no Triton kernel.",
    "the reuse of memory between the segments of a prefill graph. The memory stays allocated.",
)
"""What is not the engine's on a device, whichever engine it is."""


@dataclass(frozen=True)
class Settings:
    """What a trial is to try: all runners and models if none are named.

    `examples` are schedules of each leg beside its first.
    """

    device: str
    seed: int = 0
    runners: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    examples: int = EXAMPLES
    workers: Workers = ONE

    def __post_init__(self) -> None:
        """Raise UnknownNameError for a runner or model that no build has."""
        for runner in self.runners:
            known("runner", runner, RUNNERS)
        for preset in self.presets:
            known("preset", preset, PRESETS)


@dataclass
class Ran:
    """Legs that were run, and how many seconds all of it took.

    By label of a leg, `said` is the answer of one that has ended, and `heard` what any leg told
    last while it ran.
    """

    tasks: Sequence[LegTask]
    said: dict[str, LegAnswer] = field(default_factory=dict)
    heard: dict[str, Played] = field(default_factory=dict)
    interrupted: bool = False
    seconds: float = 0.0

    def hear(self, played: Played) -> None:
        """Keep what a leg has played and found so far."""
        self.heard[played.leg] = after(self.heard.get(played.leg), played)

    def said_by(self, task: LegTask) -> LegAnswer:
        """Return what a leg said; of one that was interrupted, what it had told."""
        ended = self.said.get(task.label)
        return ended or cut_short(task, "the run was interrupted", self.heard.get(task.label))


def cut_short(task: LegTask, reason: str, heard: Played | None) -> LegAnswer:
    """Return, as the answer of a leg that was lost, what it had told; no fault class is absent."""
    answer = LegAnswer(task.label, task.runner, task.preset, reason)
    if heard is not None and heard.found is not None:
        answer.findings, answer.faults = heard.found.findings, heard.found.faults
        answer.cases = [case_from_json(case, task.label) for case in heard.found.cases]
    return answer


@dataclass
class Answer:
    """What a trial says. `undecided` are legs and runners of which something is open, with why."""

    legs: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    undecided: list[dict[str, str]] = field(default_factory=list)
    lacking: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    padding: list[dict[str, Any]] = field(default_factory=list)
    policies: list[dict[str, Any]] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    counterexamples: list[Counterexample] = field(default_factory=list)
    stubs: list[str] = field(default_factory=list)
    emulated: list[str] = field(default_factory=list)
    assumed_off: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    def take(self, ran: Ran, device: str, engine: str = SGLANG.name) -> None:
        """Add what legs of an engine say, in order; those that have not ended are undecided."""
        for task in ran.tasks:
            self.add(ran.said_by(task))
        self.interrupted, self.seconds = ran.interrupted, ran.seconds
        on_device = EMULATED_ON_CPU if device == "cpu" else EMULATED_ON_GPU
        self.emulated = [*ADAPTERS[engine].emulated, *on_device]

    def add(self, said: LegAnswer) -> None:
        """Add what a leg says."""
        if said.played is not None:
            self.legs.append({**said.played, "leg": said.leg, "undecided": said.undecided})
        if said.lacking is not None:
            self.lack(said.runner, said.lacking)
        if said.undecided is not None:
            self.leave_open(said.leg, said.runner, said.undecided)
        self.faults += said.faults
        self.findings += said.findings
        self.notes += [f"{said.leg}: {note}" for note in said.notes]
        self.padding += said.padding
        self.policies += said.policies
        self.cases += said.cases
        self.counterexamples += said.counterexamples
        self.stubs = sorted({*self.stubs, *said.stubs})
        self.modules = sorted({*self.modules, *said.modules})
        self.assumed_off = sorted({*self.assumed_off, *said.assumed_off})

    def lack(self, runner: str, reason: str) -> None:
        """Note once why the engine has no such runner, however many legs say so."""
        entry = {"runner": runner, "reason": reason}
        if entry not in self.lacking:
            self.lacking.append(entry)

    def leave_open(self, leg: str, runner: str, reason: str) -> None:
        """Note why a leg, or a runner, settles nothing."""
        self.undecided.append({"leg": leg, "runner": runner, "reason": reason})


class Follower(Protocol):
    """Follows legs as they are played."""

    def begin(self, legs: Sequence[str]) -> None:
        """Hear which legs there are, before any is played."""
        ...

    def hear(self, played: Played) -> None:
        """Hear what a leg has played so far."""
        ...

    def on_leg(self, said: LegAnswer) -> None:
        """Hear what a leg that has ended says."""
        ...


class Unfollowed:
    """A follower that does nothing."""

    def begin(self, legs: Sequence[str]) -> None:
        """Do nothing."""

    def hear(self, played: Played) -> None:
        """Do nothing."""

    def on_leg(self, said: LegAnswer) -> None:
        """Do nothing."""


LegsOf = Callable[[str], list[LegTask]]
"""The legs in which a runner is tried."""


def try_all(engine: Found, settings: Settings, log: Path, follower: Follower) -> Answer:
    """Try every runner that an engine has, and return what was found; the engine prints to `log`.

    Interrupted, it returns what was found until then.
    """
    answer = Answer()
    tasks = planned(answer, engine, settings, lambda name: _legs_of(name, engine, settings, log))
    ran = run_legs(tasks, settings.workers, log, follower)
    answer.take(ran, settings.device, engine.engine)
    return answer


def play_case(engine: Found, case: EngineCase, log: Path) -> Answer:
    """Play the schedule of one case on an engine, and return what was found."""
    answer, device = Answer(), case.case.trial.device
    ran = run_legs([case_leg(engine, case, Kind.REPLAYED, log)], ONE, log)
    answer.take(ran, device, engine.engine)
    return answer


def planned(answer: Answer, engine: Found, settings: Settings, legs_of: LegsOf) -> list[LegTask]:
    """Return the legs of the runners asked for; what has none is noted in `answer`, with why."""
    tasks, adapter = list[LegTask](), ADAPTERS[engine.engine]
    for name in settings.runners or tuple(adapter.runners):
        runner = adapter.runners.get(name)
        if runner is None:
            answer.leave_open(name, name, f"paritybit does not drive it: {adapter.undriven[name]}")
        elif settings.device not in adapter.devices:
            only = " and ".join(sorted(adapter.devices))
            answer.leave_open(name, name, f"this engine runs only on {only}")
        elif settings.device != "cpu" and not runner.captures:
            reason = "it compiles a function for a CPU and does not run on a GPU"
            answer.lack(name, reason)
        elif not mentions(engine.package / PACKAGES[engine.engine].marker, runner.word):
            answer.lack(name, f"the engine has nothing called {runner.word}")
        else:
            tasks += legs_of(name)
    if not settings.runners:
        answer.notes += [f"not tried: {name}: {why}" for name, why in adapter.undriven.items()]
    return tasks


def mentions(folder_of_source: Path, word: str) -> bool:
    """Whether a word stands anywhere in a folder of an engine's source, however it is written.

    Neither case nor spaces, dashes and underscores count. A runner whose class has only moved, or
    has another name, is still mentioned; one that is not was never there.
    """
    wanted, sources = run_together(word), folder_of_source.rglob("*.py")
    return any(wanted in run_together(text_of(source)) for source in sources)


def text_of(source: Path) -> str:
    """Return the text of a source file, as far as it is text."""
    return read_bytes(source).decode(errors="replace")


def run_together(text: str) -> str:
    """Return a text in lower case, without what may part words."""
    return text.lower().translate(dict.fromkeys(map(ord, "_- ")))


def _legs_of(name: str, engine: Found, settings: Settings, log: Path) -> list[LegTask]:
    """Return the legs of a runner: replays on each model, what else it is tried in on one."""
    runner = ADAPTERS[engine.engine].runners[name]
    presets = settings.presets or runner.presets
    return [
        leg_of(name, preset, kind, engine, settings, log)
        for kind in runner.kinds
        for preset in (presets if kind is Kind.REPLAYED else presets[:1])
    ]


def leg_of(
    runner: str, preset: str, kind: Kind, engine: Found, settings: Settings, log: Path
) -> LegTask:
    """Return a leg of an engine's trial, as its settings say."""
    return LegTask(
        package=str(engine.package),
        dependencies=str(dependencies_folder() / DEPENDENCIES),
        device=settings.device,
        runner=runner,
        preset=preset,
        kind=kind,
        seed=settings.seed,
        examples=settings.examples,
        log=str(log),
        engine=engine.engine,
        progress=str(log.with_suffix(".progress")),
    )


def case_leg(engine: Found, case: EngineCase, kind: Kind, log: Path) -> LegTask:
    """Return a leg that plays the schedule of one case."""
    trial = case.case.trial
    settings = Settings(trial.device, case.case.seed)
    leg = leg_of(trial.runner, trial.preset, kind, engine, settings, log)
    return replace(leg, case=case.case)


UNFOLLOWED = Unfollowed()


def run_legs(
    tasks: Sequence[LegTask], workers: Workers, log: Path, follower: Follower = UNFOLLOWED
) -> Ran:
    """Run legs, each in a process of its own if need be, and return what they say.

    If it is interrupted, it returns the answers of the legs that have ended, and what the others
    had told. What a leg had told is also its answer where its process dies or takes too long.
    """
    ran, lost = Ran(tasks), list[tuple[LegTask, str]]()

    def hear(played: Played) -> None:
        ran.hear(played)
        follower.hear(played)

    def on_end(ended: Ended[LegTask, LegAnswer]) -> None:
        task, result = ended.task, ended.result
        if result is None:
            reason = headline(ended.error or "")
            lost.append((task, reason))
            result = cut_short(task, reason, None)
        ran.said[task.label] = result
        follower.on_leg(result)

    campaign = Campaign(
        run_leg,
        shared=lambda task: task.runner,
        seconds=seconds_of,
        variables=VARIABLES,
        label=lambda task: task.label,
    )
    started, progress = time.perf_counter(), log.with_suffix(".progress")
    follower.begin([task.label for task in tasks])
    try:
        with listening(progress, hear):
            execute(campaign, tasks, workers.at_most(len(tasks)), on_end)
    except KeyboardInterrupt:
        ran.interrupted = True
    for task, reason in lost:  # By now all is heard that they told.
        ran.said[task.label] = cut_short(task, reason, ran.heard.get(task.label))
    progress.unlink(missing_ok=True)
    ran.seconds = time.perf_counter() - started
    return ran


def seconds_of(task: LegTask) -> float:
    """Return how long a leg may take."""
    if task.kind is Kind.SOAKED:
        return LEG_SECONDS + SECONDS_PER_STEP * task.steps
    return LEG_SECONDS + SECONDS_PER_SCHEDULE * task.examples


def to_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON data, without its counterexamples: a record holds these apart."""
    held = {field.name: getattr(answer, field.name) for field in fields(answer)}
    del held["counterexamples"]
    return held | {"cases": [case.to_json() for case in answer.cases]}
