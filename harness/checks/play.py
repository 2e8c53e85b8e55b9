"""Play schedules on a pair of runs, and check the properties at each step.

Playing stops at the first violation that leaves the two runs different (`Property.diverges`),
because every later step would differ too. Any other violation is reported once, and playing
continues.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch
from paritybit.harness.checks.property import Violation, judge_end, judge_step
from paritybit.harness.checks.step_properties.index_contract import INDEX_CONTRACT
from paritybit.harness.checks.step_properties.no_crash import NO_CRASH, describe_error
from paritybit.harness.checks.table import (
    CHEAP_PROPERTIES,
    DIVERGING_PROPERTIES,
    PROPERTIES,
)
from paritybit.harness.errors import DeviceError, headline
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation, Sample
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, traceback_of
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.buffers import SharedBufferError
from paritybit.subjects.protocol import ReplayResult


@dataclass
class Outcome:
    """The result of playing one schedule.

    - `violations`: the first one of each property, and all those that a whole schedule shows.
    - `steps`: steps with a forward. In an idle step only the graph run runs one.
    - `last`: the index of the last step that began.
    - `replays`, `padded_replays`: replays of the runner under test.
    - `compared`: samples compared with the oracle.
    - `overlapped`: steps that were planned while a forward was in flight.
    - `error`: the traceback of an error outside the engine under test. The outcome then proves
      nothing.
    - `device_lost`: the process can no longer use its device.
    """

    violations: tuple[Violation, ...] = ()
    steps: int = 0
    last: int = 0
    replays: int = 0
    padded_replays: int = 0
    compared: int = 0
    overlapped: int = 0
    error: str | None = None
    device_lost: bool = False

    def count(self, replay: ReplayResult | None, runner: str) -> None:
        """Count the forward of one step. `runner` is under test."""
        under_test = replay is not None and replay.runner == runner
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


Observer = Callable[[int, Step, Observation | None, frozenset[str]], None]
"""Called after each step with its index, the step, its observation, and the ids of the properties
that it is the first to violate."""


class SchedulePlayer:
    """The pair of runs of one trial, and the properties to check. Plays any number of schedules.

    The arguments after `property_ids` are those of `Pair`.

    - `capture_failure`: the violation if the engine cannot be captured, or None. With it there is
      no `pair`, and every schedule with a step has this violation.
    """

    pair: Pair

    def __init__(
        self,
        trial: TrialConfig,
        property_ids: Collection[str] = CHEAP_PROPERTIES,
        *,
        records_ops: bool = False,
        alone: bool = False,
    ) -> None:
        self.trial = trial
        self.capture_failure: Violation | None = None
        self.capture_warnings: tuple[str, ...] = ()
        try:
            self.pair = Pair(trial, records_ops=records_ops, alone=alone)
            self.capture_warnings = self.pair.capture_warnings
        except SubjectFailedError as error:
            shared = isinstance(error.__cause__, SharedBufferError)
            violated = INDEX_CONTRACT if shared else NO_CRASH
            _, where = describe_error(error)
            message = f"the engine could not be captured: {error}"
            self.capture_failure = Violation(violated.id, 0, message, where)
        self.set_properties(property_ids)

    def set_properties(self, property_ids: Collection[str]) -> None:
        """Check these properties from now on."""
        self.properties = [one for name, one in PROPERTIES.items() if name in property_ids]

    def play(
        self,
        schedule: Schedule,
        observer: Observer | None = None,
        until: Collection[str] = (),
    ) -> Outcome:
        """Reset both runs to equal bytes, and play a schedule to its end or until they diverge.

        - `observer`: called after every step.
        - `until`: further properties whose first violation ends the playing.

        If the engine under test fails with IndexError, RuntimeError or ValueError, that violates
        no_crash. Any other error is an internal error, and `Outcome.error` has its traceback.
        Raises DeviceLostError if the device can no longer be used.
        """
        outcome = Outcome()
        if self.capture_failure is not None:
            outcome.add([self.capture_failure] if schedule.steps else [])
            return outcome
        with torch.inference_mode():
            try:
                self._play(schedule, outcome, observer, DIVERGING_PROPERTIES.union(until))
            except SubjectFailedError as error:
                outcome.add([Violation(NO_CRASH.id, outcome.last, *describe_error(error))])
                outcome.device_lost = isinstance(error.__cause__, torch.AcceleratorError)
            except Exception as error:  # Not caused by the engine: keep the whole traceback.
                outcome.error = traceback_of(error)
                outcome.device_lost = isinstance(error, torch.AcceleratorError)
        if self.pair.overlapped is not None:
            outcome.overlapped = self.pair.overlapped.planned_ahead
        if outcome.device_lost:
            raise DeviceLostError(schedule, outcome)
        return outcome

    def _play(
        self,
        schedule: Schedule,
        outcome: Outcome,
        observer: Observer | None,
        ending: Collection[str],
    ) -> None:
        """Play and check the steps, then check the schedule as a whole. Adds to `outcome`.

        A violation of a property in `ending` ends the playing.
        """
        samples = list[Sample]()
        judges = [one.judge_schedule for one in self.properties if one.judge_schedule is not None]
        extra_runs = {one.id: one.extra_run for one in self.properties if one.extra_run}
        self.pair.reset(schedule.seed)
        for index, step, upcoming in schedule.ahead():
            outcome.last = index
            observation = self.pair.step(
                step, index, extra_runs, upcoming=upcoming, sampling=bool(judges)
            )
            if observation is None:
                new = outcome.add(judge_end(self.properties, self.pair.end(index)))
            else:
                outcome.count(observation.replay, self.trial.runner)
                new = outcome.add(judge_step(self.properties, observation))
                samples += observation.samples
            if observer is not None:
                observer(index, step, observation, new)
            if outcome.violated.intersection(ending):
                break
        outcome.compared = len(samples)
        for judge_schedule in judges:
            outcome.violations += tuple(judge_schedule(self.pair.models, samples))
