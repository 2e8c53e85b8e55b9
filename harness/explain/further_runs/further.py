"""A further run of a forward on the fresh engine, recorded like the subject's own run."""

from dataclasses import replace
from functools import partial
from typing import Any

from paritybit.harness.explain.cause import shown_difference
from paritybit.harness.explain.counterfactuals.objects import Kept
from paritybit.harness.explain.facts import Cause
from paritybit.harness.explain.first_difference import Side, first_difference
from paritybit.harness.explain.origins.tables import both
from paritybit.harness.explain.provenance import StaticLedger
from paritybit.harness.explain.recorded import (
    OpRecorder,
    RecordedForward,
    copied,
    record_forward,
    run,
)
from paritybit.harness.lockstep.fresh_run import FreshRun, Show, tables_kept
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.protocol import Forward


class FurtherRecorder(OpRecorder):
    """Records as an `OpRecorder` does, and records the last forward's further run.

    `ran` has the fields of a `RecordedForward` that the further run has for itself. It is empty
    without a further run. `seen` is what is observed of the further run.
    """

    def __init__(self, asked_by: str, extra: FreshRun, *given: Any) -> None:
        super().__init__(*given)
        self.asked_by, self.extra = asked_by, extra
        self.ran: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}

    def begin(self) -> None:
        """Keep what the fresh engine's Python objects hold, too."""
        super().begin()
        self.fresh_captured = Kept(self.pair.fresh_engine)

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Run the last forward once more, before both worlds run it."""
        last = self.forwards == self.last
        super().planned(pair, planned)
        if last and planned.expected_graph:
            self.ran = self._run(planned)
            pair.restore_graph()
            # The further run overwrote the results of the fresh engine, so it runs again.
            self.fresh_calls, self.fresh = self._run_fresh(planned)
            pair.restore_graph()

    def _run(self, planned: PlannedStep) -> dict[str, Any]:
        """Run a forward further, or return nothing if its caller does not run it."""
        pair, engine = self.pair, self.pair.fresh_engine
        pools, runner = pair.graph_pools, engine.runners[planned.mode]
        buffers = engine.all_static_buffers()
        ledger = StaticLedger(buffer for held in buffers for buffer in held.values())
        with tables_kept(pools.tables):
            with ledger.during(self.forward_id, equalizing=True):
                show = self.extra.prepare(pair, planned)
            if show is None:
                return {}
            fields = {
                "engine": engine,
                "runner": runner,
                "graph_before": pools.storage.clone(),
                "tables": tuple(table.clone() for table in both(pools.tables)),
                "static_before": copied(runner),
                "ledger": ledger,
                "state": engine.state(),
                "objects": Kept(engine),
                "captured": self.fresh_captured,
                "overrides": self.extra.overrides,
                "fresh_calls": [],
            }
            with ledger.during(self.forward_id):
                ran = run(pair, engine, planned, self.extra.overrides)
            shown = partial(self._shown, show)
            if ran.forward is not None:
                self.seen = shown(ran.forward)
        return {**fields, "run": ran, "static": copied(runner), "show": shown}

    def _shown(self, show: Show, forward: Forward) -> dict[str, Any]:
        """Return what is observed of the further run, as in an observation."""
        return {self.asked_by: show(forward)}

    def recorded(self, observation: Observation | None) -> RecordedForward:
        """Return the last forward, with its further run."""
        if observation is not None:
            observation = replace(observation, extra={**observation.extra, **self.seen})
        own = super().recorded(observation)
        return replace(own, further=replace(own, **self.ran)) if self.ran else own


def record_further(
    pair: Pair, schedule: Schedule, number: int, asked_by: str, extra: FreshRun
) -> RecordedForward:
    """Record a forward of a schedule and its further run, as `record_forward` does."""
    return record_forward(pair, schedule, number, partial(FurtherRecorder, asked_by, extra))


def further_cause(recorded: RecordedForward, words: str) -> Cause | None:
    """Return the first op of a further run whose bits differ from the eager world's."""
    further = recorded.further
    if further is None:
        return None
    pools, calls = recorded.pair.graph_pools, further.again().calls
    left = Side(recorded.pair.eager_pools, recorded.eager_before, recorded.eager_calls)
    difference = first_difference(left, Side(pools, further.graph_before, calls))
    if difference is None:
        return None
    shown = shown_difference(further, difference)
    return Cause("not known", difference=shown, compared=compared(words))


def compared(words: str) -> tuple[str, ...]:
    """Return in words what is compared."""
    return "in its own batch", words, "every earlier op gave the row the same bits in both"
