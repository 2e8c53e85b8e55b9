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

from harness.checks.schedules import (
    Playback,
    Sampled,
    dense_agreement,
    determinism,
    longest,
    token_trajectory,
)
from harness.checks.steps import STEP_CHECKS, judge
from harness.lockstep.config import TrialConfig
from harness.lockstep.extra_runs import ExtraRuns
from harness.lockstep.logs import LogTrap
from harness.lockstep.observation import Before, ExtraResults, Observation
from harness.lockstep.pair import Pair, SubjectFailedError
from harness.lockstep.violation import STATE_PROPERTIES, STEP_PROPERTIES, Violation
from harness.schedules.coverage import Coverage
from harness.schedules.schedule import Schedule, Step
from reference.batch import Mode
from subjects.buffers import SharedBufferError


@dataclass
class Outcome:
    """What playing one schedule gave. `steps` counts forwards that both worlds ran.

    The replays are those of the runner on trial; `events` count every runner's. After
    `device_lost` this process can do nothing more on its device.
    """

    violations: tuple[Violation, ...] = ()
    steps: int = 0
    replays: int = 0
    padded_replays: int = 0
    events: Counter[str] = field(default_factory=Counter)
    device_lost: bool = False
    error: str | None = None

    def count(self, observation: Observation) -> None:
        """Count one step's forward."""
        replay = observation.replay
        under_test = replay is not None and replay.runner == observation.pair.trial.runner
        self.steps += 1
        self.replays += under_test
        self.padded_replays += under_test and replay is not None and replay.padded

    @property
    def violated(self) -> frozenset[str]:
        """The properties violated."""
        return frozenset(each.property for each in self.violations)


class DeviceLostError(BaseException):
    """A device assert or an illegal access: a finding, after which the process must end.

    No Exception, so that no shrinking goes on upon a device that answers nothing.
    """

    def __init__(self, schedule: Schedule, outcome: Outcome) -> None:
        super().__init__(outcome.violations[-1].message)
        self.schedule = schedule
        self.outcome = outcome

    def __reduce__(self) -> tuple[type["DeviceLostError"], tuple[Schedule, Outcome]]:
        """Cross from a worker process whole."""
        return type(self), (self.schedule, self.outcome)


Observer = Callable[[int, Step, Observation | None, frozenset[str]], None]
"""Told of each step: its place, the step, what was observed of its forward, what it violated."""


def unobserved(
    place: int, step: Step, observation: Observation | None, violated: frozenset[str]
) -> None:
    """Observe nothing."""


class Lockstep:
    """Plays schedules on the arms of one trial and checks the given properties.

    `witnessed` is that of its arms: what a forward did inside can then be told.
    """

    def __init__(
        self,
        trial: TrialConfig,
        properties: Collection[str] = STEP_PROPERTIES,
        *,
        witnessed: bool = False,
    ) -> None:
        self.trial = trial
        self.trap = LogTrap()
        self.refused: str | None = None
        with self.trap, torch.inference_mode():
            try:
                self.pair = Pair(trial, witnessed=witnessed)
            except SharedBufferError as error:
                self.refused = str(error)
                self.pair = Pair(trial.clean)
        self.capture_warnings = self.trap.take()
        self.before = Before(
            torch.empty_like(self.pair.eager_pools.storage),
            torch.empty_like(self.pair.graph_pools.storage),
        )
        self.extra_runs = ExtraRuns(self.pair, self.before)
        self.watch(properties)

    def watch(self, properties: Collection[str]) -> None:
        """Check these properties from now on."""
        self.properties = frozenset(properties)
        self.checks = [each for each in STEP_CHECKS if each.property in self.properties]

    def play(
        self,
        schedule: Schedule,
        observer: Observer = unobserved,
        until: Collection[str] = (),
    ) -> Outcome:
        """Play a schedule from equal bytes until its end or until the worlds part.

        It also ends with the first violation of a property of `until`. `observer` is told of
        every step, after its forward and before what follows from it. A step that fails
        violates captured_path, and logits_parity if the subject failed; one that takes the
        device along raises DeviceLostError. A build whose runners disagree on a shared
        buffer cannot be captured: that violates index_contract at the first forward.
        """
        outcome = Outcome()
        if self.refused is not None:
            outcome.violations = self._refusal(schedule, self.refused)
            return outcome
        coverage = Coverage(outcome.events)
        outputs: list[Tensor] = []
        latest: dict[tuple[int, bool], Sampled] = {}
        found: list[Violation] = []
        message: set[str] = set()
        ending = STATE_PROPERTIES.union(until)
        place = 0
        with self.trap, torch.inference_mode():
            self.trap.take()
            self.pair.reset(schedule.seed)
            try:
                for place, step in schedule.flat():
                    observation = self._step(place, step, outcome.steps)
                    if observation is None:
                        observer(place, step, None, frozenset())
                        continue
                    outcome.count(observation)
                    batch = observation.batch
                    coverage.see(observation.replay, batch.raw_bs if batch is not None else 0)
                    new = [
                        each
                        for each in judge(self.checks, observation)
                        if each.property not in message
                    ]
                    found += new
                    message.update(each.property for each in new)
                    observer(place, step, observation, frozenset(each.property for each in new))
                    self._commit(observation, outputs, latest)
                    if message & ending:
                        break
                outcome.events["held against the oracle"] = len(longest(latest.values()))
                found += self._judge_end(schedule, place, outcome.steps, outputs, latest)
            except SubjectFailedError as error:
                # What gives no logits does not give the right ones.
                found += [
                    Violation(name, place, f"the step failed: {error}")
                    for name in ("captured_path", "logits_parity")
                    if name not in message
                ]
                outcome.device_lost = isinstance(error.__cause__, torch.AcceleratorError)
            except (IndexError, RuntimeError) as error:
                if "captured_path" not in message:
                    reason = f"the step failed: {str(error).splitlines()[0]}"
                    found.append(Violation("captured_path", place, reason))
                outcome.device_lost = isinstance(error, torch.AcceleratorError)
        outcome.violations = tuple(found)
        outcome.events.update(self.pair.graph.events)
        if outcome.device_lost:
            raise DeviceLostError(schedule, outcome)
        return outcome

    def _refusal(self, schedule: Schedule, message: str) -> tuple[Violation, ...]:
        """Return the violation of a build that cannot be captured; none if no step would ask it."""
        with torch.inference_mode():
            self.pair.reset(schedule.seed)
            for place, step in schedule.flat():
                if self.pair.eager.plan(step) is not None:
                    return (Violation("index_contract", place, message),)
        return ()

    def _step(self, place: int, step: Step, seed: int) -> Observation | None:
        """Run one step in both worlds and observe it; None if it asks for no forward."""
        pair = self.pair
        eager_work, graph_work = pair.eager.plan(step), pair.graph.plan(step)
        if eager_work is None or graph_work is None:
            return None
        batch, eager_batch = graph_work.batch, eager_work.batch
        self.before.eager.copy_(pair.eager_pools.storage)
        self.before.graph.copy_(pair.graph_pools.storage)
        expected = batch is None or self.trial.expects_graph(batch)
        extra = ExtraResults()
        if expected:
            extra = self.extra_runs.run(self.properties, eager_work, graph_work, seed)
        eager_output = pair.decoder.forward(eager_batch) if eager_batch is not None else None
        forward = pair.subject.forward(graph_work)
        return Observation(
            pair=pair,
            step=place,
            mode=graph_work.mode,
            batch=batch,
            eager_batch=eager_batch,
            before=self.before,
            eager_output=eager_output,
            graph_output=forward.output if batch is not None else None,
            replay=forward.replay,
            expected_graph=expected,
            extra=extra,
            allocated=pair.subject.allocated(forward.replay),
            warnings=self.trap.take(),
        )

    def _commit(
        self,
        observation: Observation,
        outputs: list[Tensor],
        latest: dict[tuple[int, bool], Sampled],
    ) -> None:
        """Let both worlds follow; keep the live outputs, and each request's latest eager logits."""
        if observation.batch is None or observation.eager_batch is None:
            return
        assert observation.eager_output is not None and observation.graph_output is not None
        said = self.pair.eager.commit(observation.eager_batch, observation.eager_output)
        self.pair.graph.commit(observation.batch, observation.graph_output)
        if "determinism" in self.properties:
            outputs += [
                each.clone()
                for output in (observation.eager_output, observation.graph_output)
                for each in output.values()
            ]
        if "dense_agreement" in self.properties:
            draft = observation.mode is Mode.DRAFT_EXTEND
            rows = range(observation.batch.raw_bs) if draft else said
            for span, row in zip(observation.batch.spans, rows, strict=False):
                request = self.pair.eager.request_of(span.row)
                if not draft or request.drafted == request.length:
                    logits = observation.eager_output["logits"][row]
                    sampled = Sampled.of(self.pair.eager, request, logits, draft=draft)
                    latest[request.serial, draft] = sampled

    def _judge_end(
        self,
        schedule: Schedule,
        place: int,
        steps: int,
        outputs: list[Tensor],
        latest: dict[tuple[int, bool], Sampled],
    ) -> list[Violation]:
        """Judge what is judged once a schedule, over the steps that were played."""
        found = []
        if "token_trajectory" in self.properties:
            found += token_trajectory(self.pair, place)
        if "dense_agreement" in self.properties:
            found += dense_agreement(self.pair, latest.values(), place)
        if "determinism" in self.properties:
            events = self.pair.graph.events
            first = self._playback(outputs)
            found += determinism(self.pair, first, self._play_again(schedule, steps), place)
            self.pair.graph.events = events
        return found

    def _play_again(self, schedule: Schedule, steps: int) -> Playback:
        """Play the first `steps` forwards of a schedule with no other check."""
        watched = self.properties
        outputs: list[Tensor] = []
        self.pair.reset(schedule.seed)
        self.watch({"determinism"})
        try:
            for place, step in schedule.flat():
                if steps == 0:
                    break
                observation = self._step(place, step, 0)
                if observation is not None:
                    steps -= 1
                    self._commit(observation, outputs, {})
        finally:
            self.watch(watched)
        return self._playback(outputs)

    def _playback(self, outputs: list[Tensor]) -> Playback:
        storages = self.pair.eager_pools.storage.clone(), self.pair.graph_pools.storage.clone()
        return Playback(tuple(outputs), storages)
