"""Extra runs of a step on the fresh engine, with other surrounding bytes or in another bucket."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paritybit.harness.lockstep.pair import POISON, Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.tracebacks import SubjectRuns
from paritybit.subjects.protocol import ForwardResult, Overrides
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN
from torch import Tensor

Collect = Callable[[ForwardResult], Any]
"""Returns the result of an extra run, from a forward that has just run."""


@dataclass(frozen=True)
class FreshRun:
    """An extra run of a step on the fresh engine. It leaves both runs unchanged.

    - `prepare`: sets up the fresh engine and the graph run's memory. It returns a function that
      makes the result for the property from the forward, or None to skip the run.
    - `at_fault`: whether an unexpected result is the fault of this run rather than of the step.
    - `overrides`: what the replay does differently.
    """

    prepare: Callable[[Pair, PlannedStep], Collect | None]
    at_fault: bool = True
    overrides: Overrides = NOTHING_OVERRIDDEN

    def __call__(self, pair: Pair, planned: PlannedStep) -> Any:
        """Run a planned step. Returns the result for the property, or None if it was skipped."""
        batch, tables = planned.graph.batch, pair.graph_pools.tables
        # An engine may change the batch, which the step runs as well.
        of_batch = () if batch is None else (*vars(batch).values(), *batch.spec_info.values())
        in_use = tables.req_to_token, tables.full_to_swa_index_mapping, *of_batch
        kept = [(value, value.clone()) for value in in_use if isinstance(value, Tensor)]
        try:
            collect = self.prepare(pair, planned)
            if collect is None:
                return None
            with SubjectRuns():
                forward = pair.fresh_engine.forward(batch, planned.mode, self.overrides)
            return collect(forward)
        finally:
            for tensor, values in kept:
                tensor.copy_(values)
            pair.restore_graph()


def just_captured(pair: Pair, planned: PlannedStep) -> None:
    """Reset the fresh engine to its state after capture, and equalize its padded rows."""
    pair.fresh_engine.reset()
    pair.fresh_engine.equalize_padding(planned.mode, POISON)
