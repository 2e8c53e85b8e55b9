"""How far a bug got on the way to its detection: its code ran, and its step gave a wrong result.

A step reaches a bug if it runs the changed code. If no code is changed, it reaches the bug if the
runner under test replays what the bug changes. It triggers the bug if the engine then holds or
gives another result than a correct engine after the same steps over the same KV. No property is
involved, so this does not depend on detection.
"""

from collections.abc import Iterable

import torch
from paritybit.harness.explain.facts import Reach
from paritybit.harness.lockstep.bits import bits, clone_output, outputs_differ
from paritybit.harness.lockstep.config import FRESH_LOGGER
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair, captured_engine
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Schedule, modes_of
from paritybit.reference.batch import Mode
from paritybit.reference.model import Output
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.protocol import Forward
from torch import Tensor

TAIL_FIELDS = frozenset({"policy", "value"})
"""Fields of a contract row about padding, which matter only in padded replays."""


AT_CAPTURE = Reach(schedules=1, reached=1, triggered=1, reached_at=None, triggered_at=None)
"""How far a bug got that prevents the capture of the engine. No step exists."""


class RightEngine:
    """An engine without the bug, over the same KV as the subject. It gives the right results.

    It runs each step before the subject does, and leaves KV unchanged. It captures only what the
    steps need, even if the subject has captured everything, because that does not change its
    results.
    """

    def __init__(self, pair: Pair) -> None:
        right = pair.trial.clean.subject()
        self.engine = captured_engine(pair, right, FRESH_LOGGER, modes=())
        self.forward: Forward | None = None
        self.output: Output = {}
        self.storage: Tensor = torch.empty_like(pair.graph_pools.storage)

    def reset(self) -> None:
        """Return to the state after capture, and forget all results."""
        self.engine.reset()
        self.forward, self.output = None, {}

    def run(self, pair: Pair, planned: PlannedStep) -> None:
        """Run a planned step, and keep its results."""
        pair.equalize_padding(self.engine, planned)
        self.forward = self.engine.forward(planned.graph.batch, planned.mode)
        self.output = clone_output(self.forward.output)
        self.storage.copy_(pair.graph_pools.storage)
        pair.restore_graph()

    def differs(self, pair: Pair, seen: Observation) -> bool:
        """Whether the subject held, gave, wrote or replayed anything else in the step just run.

        A step that no graph can run is not run here. For such a step only the log is compared.
        """
        forward, self.forward = self.forward, None
        if forward is None or seen.warnings:
            return bool(seen.warnings)
        if seen.graph.output is not None and outputs_differ(self.output, seen.graph.output):
            return True
        different = (bits(self.storage) != bits(seen.graph.after)) & pair.compared
        if bool(different.any()) or self._inputs_differ(pair, seen.mode):
            return True
        if forward.replay is None or seen.facts is None:
            return (forward.replay is None) != (seen.replay is None)
        return self.engine.facts(forward.replay).graph != seen.facts.graph

    def _inputs_differ(self, pair: Pair, mode: Mode) -> bool:
        """Whether any static input or key list of a mode's runner differs."""
        right, subject = self.engine.runners[mode], pair.subject.runners[mode]
        pairs = [
            (right.inputs.buffers[name], buffer) for name, buffer in subject.inputs.buffers.items()
        ]
        pairs += [
            (right.metadata.buffers[name], buffer)
            for name, buffer in subject.metadata.buffers.items()
        ]
        return any(
            one.dtype != other.dtype
            or one.shape != other.shape
            or bool((bits(one) != bits(other)).any())
            for one, other in pairs
        )


class Reaching:
    """Follows a bug through schedules, on the pair of its trial."""

    def __init__(self, pair: Pair, bug: Bug) -> None:
        self.pair = pair
        self.bug = bug
        self.right = RightEngine(pair)

    def count(self, schedules: Iterable[Schedule]) -> Reach:
        """Play each schedule until the bug is triggered, and count.

        Afterwards a reset of the pair undoes all changes.
        """
        played = 0
        reached: list[int] = []
        triggered: list[int] = []
        with torch.inference_mode():
            for schedule in schedules:
                played += 1
                reached_at, triggered_at = self._follow(schedule)
                reached += [] if reached_at is None else [reached_at]
                triggered += [] if triggered_at is None else [triggered_at]
        return Reach(
            played,
            len(reached),
            len(triggered),
            reached[0] if reached else None,
            triggered[0] if triggered else None,
        )

    def _follow(self, schedule: Schedule) -> tuple[int | None, int | None]:
        """Return the places of the first steps of a schedule that reach and trigger the bug."""
        reached_at: int | None = None
        modes = modes_of(schedule.steps, self.pair.modes)
        self.pair.capture(modes)
        self.right.engine.capture(modes)
        self.pair.begin(schedule)
        self.right.reset()
        for place, step, upcoming in schedule.ahead():
            executed = self._calls()
            try:
                runs = {"right engine": self.right.run}
                seen = self.pair.step(step, place, runs, upcoming=upcoming)
            except SubjectFailedError:
                return place if reached_at is None else reached_at, place
            triggered = self._tables_differ(place) or (
                seen is not None and self.right.differs(self.pair, seen)
            )
            ran = self._calls() > executed or (seen is not None and self._replays_bug(seen))
            if reached_at is None and (ran or triggered):
                reached_at = place
            if triggered:
                return reached_at, place
        return reached_at, None

    def _calls(self) -> int:
        return self.pair.on_trial.parts.executed.total()

    def _replays_bug(self, seen: Observation) -> bool:
        """Whether a step replayed what the bug changes, for a bug without code."""
        if self.bug.parts and not self.pair.captures.executed:
            return False
        replay = seen.replay
        if replay is None or replay.runner != seen.under_test:
            return bool(self.bug.without) and replay is None
        fields = {name for changed in self.bug.rows.values() for name in changed}
        return replay.padded or not fields or not fields <= TAIL_FIELDS

    def _tables_differ(self, place: int) -> bool:
        """Whether the runs allocate or map slots differently after a step."""
        end = self.pair.end(place)
        lists = [
            (one.free_full, one.free_swa, one.free_rows, one.free_states)
            for one in (end.eager, end.graph)
        ]
        tables = [(one.req_to_token, one.mapping) for one in (end.eager, end.graph)]
        return lists[0] != lists[1] or not all(map(torch.equal, *tables))
