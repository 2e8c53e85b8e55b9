"""Play a schedule on a pair of runs and check the properties at each step.

The play stops at the first violation that makes the runs diverge, because every later step
would differ too. Any other violation is reported once, and the play continues.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice

import torch
from paritybit.harness.checks.property import (
    Playback,
    Playing,
    Violation,
    judge,
    judge_end,
)
from paritybit.harness.checks.step_properties.no_crash import NO_CRASH, describe_error
from paritybit.harness.checks.table import (
    DIVERGING_PROPERTIES,
    PROPERTIES,
    STEP_PROPERTIES,
)
from paritybit.harness.errors import DeviceError, headline
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation, Sample
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, traceback_of
from paritybit.harness.schedules.coverage import Coverage
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.buffers import SharedBufferError
from torch import Tensor


@dataclass
class Outcome:
    """The result of playing one schedule.

    - `steps`: steps with a forward. In an idle step only the graph run runs one.
    - `replays`, `padded_replays`: replays of the runner under test.
    - `events`: how often each state was reached, by any runner.
    - `error`: the traceback of an error outside the subject. The playing then proves nothing.
    - `device_lost`: the process can no longer use its device.
    """

    violations: tuple[Violation, ...] = ()
    steps: int = 0
    replays: int = 0
    padded_replays: int = 0
    events: Counter[str] = field(default_factory=Counter)
    error: str | None = None
    device_lost: bool = False

    def count(self, observation: Observation) -> None:
        """Count the forward of one step."""
        replay = observation.replay
        under_test = replay is not None and replay.runner == observation.under_test
        self.steps += 1
        self.replays += under_test
        self.padded_replays += under_test and replay is not None and replay.padded

    def add(self, found: Iterable[Violation]) -> frozenset[str]:
        """Add the violations of properties not violated before, and return these properties."""
        new = tuple(violation for violation in found if violation.property not in self.violated)
        self.violations += new
        return frozenset(violation.property for violation in new)

    @property
    def violated(self) -> frozenset[str]:
        """The properties violated."""
        return frozenset(violation.property for violation in self.violations)


class DeviceLostError(DeviceError):
    """A device assert or an illegal memory access. The process must end.

    It is a finding, unless an internal error occurred first.
    """

    def __init__(self, schedule: Schedule, outcome: Outcome) -> None:
        messages = [violation.message for violation in outcome.violations]
        super().__init__(headline(outcome.error) if outcome.error else messages[-1])
        self.schedule = schedule
        self.outcome = outcome
        self.finding = bool(outcome.violations)

    def __reduce__(self) -> tuple[type["DeviceLostError"], tuple[Schedule, Outcome]]:
        """Keep schedule and outcome when pickled by a worker process."""
        return type(self), (self.schedule, self.outcome)


HISTORY = 250
"""The number of schedules that a lockstep remembers."""

Observer = Callable[[int, Step, Observation | None, frozenset[str]], None]
"""Called after each step with its place, the step, its observation, and the new violations."""


def ignore_step(
    place: int, step: Step, observation: Observation | None, violated: frozenset[str]
) -> None:
    """Do nothing."""


@dataclass
class Played:
    """What the steps played so far left for the properties of whole schedules.

    The last one is at `place` of the schedule.
    """

    outputs: list[Tensor] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    place: int = 0


class Lockstep:
    """Plays schedules on the pair of one trial and checks properties.

    The arguments after `property_ids` are those of `Pair`.

    - `refused`: why the built-in engine cannot be captured with the trial's bugs, or None. If it
      is set, the pair is that of the trial without bugs.
    - `history`: the last schedules played.

    Raises SubjectFailedError as `Pair` does.
    """

    def __init__(
        self,
        trial: TrialConfig,
        property_ids: Collection[str] = STEP_PROPERTIES,
        *,
        records_ops: bool = False,
        alone: bool = False,
    ) -> None:
        self.trial = trial
        self.refused: str | None = None
        self.history: deque[Schedule] = deque(maxlen=HISTORY)
        try:
            self.pair = Pair(trial, records_ops=records_ops, alone=alone)
        except SharedBufferError as error:
            self.refused = str(error)
            self.pair = Pair(trial.clean)
        self.watch(property_ids)

    @property
    def capture_warnings(self) -> tuple[str, ...]:
        """The messages at WARNING or above that were logged during captures."""
        return self.pair.capture_warnings

    def watch(self, property_ids: Collection[str]) -> None:
        """Check these properties from now on."""
        self.properties = frozenset(property_ids)
        self._rules = [rule for name, rule in PROPERTIES.items() if name in self.properties]

    def play(
        self,
        schedule: Schedule,
        observer: Observer = ignore_step,
        until: Collection[str] = (),
    ) -> Outcome:
        """Play a schedule from equal bytes until its end or until the runs diverge.

        - `observer`: called after every step.
        - `until`: further properties whose first violation ends the play.

        | what fails | result |
        |---|---|
        | the subject | a violation of no_crash |
        | the capture, because runners disagree on a shared buffer | one of index_contract |
        | anything else | `Outcome.error` has the traceback |

        The subject fails by IndexError, RuntimeError or ValueError. Other errors are anything else.
        Raises DeviceLostError if the device can no longer be used.
        """
        outcome, played = Outcome(), Played()
        self.history.append(schedule)
        with torch.inference_mode():
            try:
                if self.refused is not None:
                    outcome.add(self._refusal(schedule, self.refused))
                else:
                    ending = DIVERGING_PROPERTIES.union(until)
                    self._play(schedule, outcome, played, observer, ending)
            except SubjectFailedError as error:
                outcome.add([Violation(NO_CRASH.id, played.place, *describe_error(error))])
                outcome.device_lost = isinstance(error.__cause__, torch.AcceleratorError)
            except Exception as error:  # Not caused by the subject: keep the whole traceback.
                outcome.error = traceback_of(error)
                outcome.device_lost = isinstance(error, torch.AcceleratorError)
        outcome.events.update(self.pair.graph.events)
        if outcome.device_lost:
            raise DeviceLostError(schedule, outcome)
        return outcome

    def _play(
        self,
        schedule: Schedule,
        outcome: Outcome,
        played: Played,
        observer: Observer,
        ending: Collection[str],
    ) -> None:
        """Play and check the steps, then check the schedule as a whole."""
        coverage = Coverage(outcome.events)
        sampling = any(rule.samples for rule in self._rules)
        keeps_outputs = any(rule.plays_again for rule in self._rules)
        extra_runs = {rule.id: rule.extra_run for rule in self._rules if rule.extra_run}
        self.pair.reset(schedule.seed)
        for place, step, upcoming in schedule.ahead():
            played.place = place
            observation = self.pair.step(
                step, place, extra_runs, upcoming=upcoming, sampling=sampling
            )
            if observation is None:
                new = outcome.add(judge_end(self._rules, self.pair.end(place)))
            else:
                outcome.count(observation)
                if observation.replay is not None:
                    coverage.see(observation.replay, len(observation.graph.spans))
                new = outcome.add(judge(self._rules, observation))
                played.outputs += live_outputs(observation) if keeps_outputs else []
                played.samples += observation.samples
            observer(place, step, observation, new)
            if outcome.violated.intersection(ending):
                break
        outcome.events["compared with the oracle"] = len(played.samples)
        outcome.violations += tuple(self._judge_schedule(schedule, played))

    def _refusal(self, schedule: Schedule, message: str) -> tuple[Violation, ...]:
        """Return the violation for an engine that cannot be captured, if any step needs it."""
        self.pair.reset(schedule.seed)
        for place, step in enumerate(schedule.steps):
            if self.pair.plan(step, place) is not None:
                return (Violation("index_contract", place, message),)
        return ()

    def _judge_schedule(self, schedule: Schedule, played: Played) -> list[Violation]:
        """Check the properties of whole schedules, over the steps that were played."""
        judges = [rule.judge_schedule for rule in self._rules if rule.judge_schedule is not None]
        if not judges:
            return []
        pair = self.pair
        events = pair.graph.events
        tokens = pair.eager.tokens.clone(), pair.graph.observed_tokens.clone()
        first = again = None
        if any(rule.plays_again for rule in self._rules):
            first = self._playback(played.outputs)
            again = self._play_again(schedule, played.place + 1)
            pair.graph.events = events
        playing = Playing(
            place=played.place,
            eager_tokens=tokens[0],
            graph_tokens=tokens[1],
            samples=tuple(played.samples),
            models=pair.models,
            compared=pair.compared,
            first=first,
            again=again,
        )
        return [violation for judge_schedule in judges for violation in judge_schedule(playing)]

    def _play_again(self, schedule: Schedule, steps: int) -> Playback:
        """Play the first `steps` steps of a schedule without checks."""
        outputs: list[Tensor] = []
        self.pair.reset(schedule.seed)
        for place, step, upcoming in islice(schedule.ahead(), steps):
            observation = self.pair.step(step, place, upcoming=upcoming)
            if observation is not None:
                outputs += live_outputs(observation)
        return self._playback(outputs)

    def _playback(self, outputs: list[Tensor]) -> Playback:
        copies = self.pair.copies
        return Playback(tuple(outputs), copies.eager.clone(), copies.graph.clone())


def live_outputs(observation: Observation) -> list[Tensor]:
    """Return copies of a step's outputs for live rows, the eager run's first."""
    return [
        values.clone()
        for output in (observation.eager.output, observation.graph.output)
        if output is not None
        for values in output.values()
    ]
