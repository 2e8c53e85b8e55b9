"""Further runs of a step on the fresh engine: among other bytes, or in another bucket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.tracebacks import subject_runs
from paritybit.reference.pool import Tables
from paritybit.subjects.protocol import Forward, Overrides
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN

Show = Callable[[Forward], Any]
"""Returns what a property is shown of a forward that has just run."""


@dataclass(frozen=True)
class FreshRun:
    """A further run of a step, on the fresh engine, that leaves no trace in either world.

    `prepare` gives the engine and the graph world what the run starts from. It returns what shows
    the run to the property that asks for it, or None where the step is not run further.
    `suspect` says that this run is at fault where what it shows is wrong, and not the step's own.
    `words` say in which circumstances it runs.
    """

    prepare: Callable[[Pair, PlannedStep], Show | None]
    words: str
    suspect: bool = True
    overrides: Overrides = NOTHING_OVERRIDDEN

    def __call__(self, pair: Pair, planned: PlannedStep) -> Any:
        """Run a planned step further; return what the property is shown, None if it is not run."""
        fresh, batch = pair.fresh_engine, planned.graph.batch
        with tables_kept(pair.graph_pools.tables):
            show = self.prepare(pair, planned)
            if show is None:
                return None
            fresh.write_kv()
            with subject_runs():
                forward = fresh.forward_overridden(batch, planned.mode, self.overrides)
            fresh.read_kv()
            shown = show(forward)
        pair.restore_graph()
        return shown


@contextmanager
def tables_kept(tables: Tables) -> Iterator[None]:
    """Bring the index tables back to what they hold now once this is left."""
    both = tables.req_to_token, tables.full_to_swa_index_mapping
    kept = [(table, table.clone()) for table in both]
    try:
        yield
    finally:
        for table, before in kept:
            table.copy_(before)


def just_captured(pair: Pair, planned: PlannedStep) -> None:
    """Give the fresh engine its just-captured bytes back, with padded rows made equal."""
    pair.fresh_engine.recapture()
    pair.equalize_padding(pair.fresh_engine, planned)
