"""Lockstep: every step twice, once eagerly and once through the graph, then the checks.

Play stops after the first step in which the worlds part: from there on they differ,
and nothing more is credited. What leaves both worlds equal is told once, and play
goes on.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.arms import Arms
from harness.checks import STEP_CHECKS, judge
from harness.coverage import Coverage
from harness.end_checks import (
    Playback,
    Sampled,
    dense_agreement,
    determinism,
    longest,
    token_trajectory,
)
from harness.logs import LogTrap
from harness.probes import Probes
from harness.schedule import Schedule, Step
from harness.trace import Before, Probed, Trace
from harness.trial import Trial
from harness.violation import PARTING_PROPERTIES, STEP_PROPERTIES, Violation
from reference.batch import Mode


@dataclass
class Outcome:
    """What playing one schedule gave. `steps` counts forwards that both worlds ran.

    After `device_lost` this process can do nothing more on its device.
    """

    violations: tuple[Violation, ...] = ()
    steps: int = 0
    replays: int = 0
    padded_replays: int = 0
    events: Counter[str] = field(default_factory=Counter)
    device_lost: bool = False

    def count(self, trace: Trace) -> None:
        """Count one step's forward."""
        self.steps += 1
        self.replays += trace.replay is not None
        self.padded_replays += trace.replay is not None and trace.replay.padded

    @property
    def violated(self) -> frozenset[str]:
        """The properties violated."""
        return frozenset(each.property for each in self.violations)


class DeviceLostError(BaseException):
    """A device assert or an illegal access: a finding, after which the process must end.

    No Exception, so that no shrinking goes on upon a device that answers nothing.
    """

    def __init__(self, schedule: Schedule, outcome: Outcome) -> None:
        super().__init__(outcome.violations[-1].told)
        self.schedule = schedule
        self.outcome = outcome

    def __reduce__(self) -> tuple[type["DeviceLostError"], tuple[Schedule, Outcome]]:
        """Cross from a worker process whole."""
        return type(self), (self.schedule, self.outcome)


Observer = Callable[[int, Step, Trace | None, frozenset[str]], None]
"""Told of each step: its place, the step, what was observed of its forward, what it violated."""


def unobserved(place: int, step: Step, trace: Trace | None, violated: frozenset[str]) -> None:
    """Observe nothing."""


class Lockstep:
    """Plays schedules on the arms of one trial and checks the given properties."""

    def __init__(self, trial: Trial, properties: Collection[str] = STEP_PROPERTIES) -> None:
        self.trial = trial
        self.trap = LogTrap()
        with self.trap, torch.inference_mode():
            self.arms = Arms(trial)
        self.capture_warnings = self.trap.take()
        self.before = Before(
            torch.empty_like(self.arms.eager_pool.storage),
            torch.empty_like(self.arms.graph_pool.storage),
        )
        self.probes = Probes(self.arms, self.before)
        self.watch(properties)

    def watch(self, properties: Collection[str]) -> None:
        """Check these properties from now on."""
        self.properties = frozenset(properties)
        self.checks = [each for each in STEP_CHECKS if each.property in self.properties]

    def play(self, schedule: Schedule, observer: Observer = unobserved) -> Outcome:
        """Play a schedule from equal bytes until its end or its first violation.

        `observer` is told of every step, after its forward and before sampling. A step
        that fails violates captured_path; one that takes the device along raises
        DeviceLostError.
        """
        outcome = Outcome()
        coverage = Coverage(outcome.events)
        logits: list[Tensor] = []
        latest: dict[int, Sampled] = {}
        found: list[Violation] = []
        told: set[str] = set()
        place = 0
        with self.trap, torch.inference_mode():
            self.trap.take()
            self.arms.reset(schedule.seed)
            try:
                for place, step in schedule.flat():
                    trace = self._step(place, step, outcome.steps)
                    if trace is None:
                        observer(place, step, None, frozenset())
                        continue
                    outcome.count(trace)
                    coverage.see(trace)
                    new = [each for each in judge(self.checks, trace) if each.property not in told]
                    found += new
                    told.update(each.property for each in new)
                    observer(place, step, trace, frozenset(each.property for each in new))
                    self._sample(trace, logits, latest)
                    if told & PARTING_PROPERTIES:
                        break
                outcome.events["held against the oracle"] = len(longest(latest.values()))
                found += self._judge_end(schedule, place, outcome.steps, logits, latest)
            except (IndexError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                found.append(Violation("captured_path", place, f"the step failed: {reason}"))
                outcome.device_lost = isinstance(error, torch.AcceleratorError)
        outcome.violations = tuple(found)
        outcome.events.update(self.arms.graph.events)
        if outcome.device_lost:
            raise DeviceLostError(schedule, outcome)
        return outcome

    def _step(self, place: int, step: Step, seed: int) -> Trace | None:
        """Run one step in both worlds and observe it; None if it asks for no forward."""
        arms = self.arms
        eager_work, graph_work = arms.eager.plan(step), arms.graph.plan(step)
        if eager_work is None or graph_work is None:
            return None
        batch = graph_work.batch
        self.before.eager.copy_(arms.eager_pool.storage)
        self.before.graph.copy_(arms.graph_pool.storage)
        expected = batch is None or (
            batch.mode is Mode.DECODE and batch.raw_bs <= max(self.trial.buckets)
        )
        probed = Probed()
        if expected:
            probed = self.probes.run(self.properties, eager_work.batch, batch, seed)
        eager_logits = None
        if eager_work.batch is not None:
            eager_logits = arms.decoder.forward(eager_work.batch)
        forward = arms.subject.forward(batch)
        return Trace(
            arms=arms,
            step=place,
            batch=batch,
            eager_batch=eager_work.batch,
            before=self.before,
            eager_logits=eager_logits,
            graph_logits=forward.logits if batch is not None else None,
            replay=forward.replay,
            expected_graph=expected,
            probed=probed,
            allocated=arms.subject.allocated(forward.replay),
            warnings=self.trap.take(),
        )

    def _sample(self, trace: Trace, logits: list[Tensor], latest: dict[int, Sampled]) -> None:
        """Let both worlds sample; keep the live logits, and each request's latest eager ones."""
        if trace.batch is None or trace.eager_batch is None:
            return
        assert trace.eager_logits is not None and trace.graph_logits is not None
        self.arms.eager.sample(trace.eager_batch, trace.eager_logits)
        self.arms.graph.sample(trace.batch, trace.graph_logits)
        if "determinism" in self.properties:
            logits += [trace.eager_logits, trace.graph_logits.clone()]
        if "dense_agreement" in self.properties:
            world = self.arms.eager
            for span, row in zip(trace.batch.spans, trace.eager_logits, strict=True):
                request = world.request_of(span.row)
                if not request.prefilling:
                    latest[request.serial] = Sampled.of(world, request, row)

    def _judge_end(
        self,
        schedule: Schedule,
        place: int,
        steps: int,
        logits: list[Tensor],
        latest: dict[int, Sampled],
    ) -> list[Violation]:
        """Judge what is judged once a schedule, over the steps that were played."""
        found = []
        if "token_trajectory" in self.properties:
            found += token_trajectory(self.arms, place)
        if "dense_agreement" in self.properties:
            found += dense_agreement(self.arms, latest.values(), place)
        if "determinism" in self.properties:
            events = self.arms.graph.events
            first = self._playback(logits)
            found += determinism(self.arms, first, self._play_again(schedule, steps), place)
            self.arms.graph.events = events
        return found

    def _play_again(self, schedule: Schedule, steps: int) -> Playback:
        """Play the first `steps` forwards of a schedule with no other check."""
        watched = self.properties
        logits: list[Tensor] = []
        self.arms.reset(schedule.seed)
        self.watch({"determinism"})
        try:
            for place, step in schedule.flat():
                if steps == 0:
                    break
                trace = self._step(place, step, 0)
                if trace is not None:
                    steps -= 1
                    self._sample(trace, logits, {})
        finally:
            self.watch(watched)
        return self._playback(logits)

    def _playback(self, logits: list[Tensor]) -> Playback:
        storages = self.arms.eager_pool.storage.clone(), self.arms.graph_pool.storage.clone()
        return Playback(tuple(logits), storages)
