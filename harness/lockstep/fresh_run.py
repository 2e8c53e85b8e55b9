"""Extra runs of a step on the fresh engine, with other surrounding bytes or in another bucket."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.tracebacks import SubjectRuns
from paritybit.reference.batch import ForwardBatch
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
    - `suspect`: whether an unexpected result is the fault of this run rather than of the step.
    - `overrides`: what the replay does differently.
    """

    prepare: Callable[[Pair, PlannedStep], Collect | None]
    suspect: bool = True
    overrides: Overrides = NOTHING_OVERRIDDEN

    def __call__(self, pair: Pair, planned: PlannedStep) -> Any:
        """Run a planned step. Returns the result for the property, or None if it was skipped."""
        fresh, batch = pair.fresh_engine, planned.graph.batch
        tables = pair.graph_pools.tables
        in_use = [tables.req_to_token, tables.full_to_swa_index_mapping, *tensors_of(batch)]
        with restoring(in_use):
            collect = self.prepare(pair, planned)
            if collect is None:
                return None
            with SubjectRuns():
                forward = fresh.forward(batch, planned.mode, self.overrides)
            result = collect(forward)
        pair.restore_graph()
        return result


@contextmanager
def restoring(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the contents of tensors at the end of this context."""
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, values in zip(tensors, before, strict=True):
            tensor.copy_(values)


def tensors_of(batch: ForwardBatch | None) -> list[Tensor]:
    """Return the tensors of a batch, which an engine may change. The step runs the same batch."""
    if batch is None:
        return []
    fields = (*vars(batch).values(), *batch.spec_info.values())
    return [value for value in fields if isinstance(value, Tensor)]


def just_captured(pair: Pair, planned: PlannedStep) -> None:
    """Reset the fresh engine to its state after capture, and equalize its padded rows."""
    pair.fresh_engine.reset()
    pair.equalize_padding(pair.fresh_engine, planned)
