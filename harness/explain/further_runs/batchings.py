"""The first op that gives a request different bits in another batching."""

from collections.abc import Sequence

from paritybit.harness.explain.facts import Cause
from paritybit.harness.explain.further_runs.aligned import first_aligned
from paritybit.harness.explain.further_runs.further import compared
from paritybit.harness.explain.origins.tables import both
from paritybit.harness.explain.recorded import Calls, RecordedForward, calls_of
from paritybit.harness.lockstep.fresh_run import tables_kept
from paritybit.reference.batch import ForwardBatch


def reordered_cause(recorded: RecordedForward, words: str, order: Sequence[int]) -> Cause | None:
    """Explain a batching of some requests of a forward, by their places, in the eager world."""
    batch = recorded.planned.eager.batch
    if batch is None:
        return None
    usual = batch

    def rows(count: int) -> Sequence[int] | None:
        return rows_of(usual, order, count)

    calls = _eager_calls(recorded, usual, order)
    difference = first_aligned(recorded.eager_calls, calls, rows, recorded.pair.eager_pools)
    if difference is None:
        return None
    return Cause("not known", difference=difference, compared=compared(words))


def rows_of(batch: ForwardBatch, order: Sequence[int], count: int) -> Sequence[int] | None:
    """Return the rows, of `count`, that belong to the requests of a batch, in order.

    Returns None if `count` is neither the number of requests nor the number of rows.
    """
    owners = batch.requests_of_rows(count)
    if len(owners) != count:
        return None
    return [row for request in order for row in range(count) if owners[row] == request]


def _eager_calls(recorded: RecordedForward, batch: ForwardBatch, order: Sequence[int]) -> Calls:
    """Run some requests of a forward eagerly from its starting bytes, and return the ops."""
    pair = recorded.pair
    pair.eager_pools.storage.copy_(recorded.eager_before)
    spans = [batch.spans[request] for request in order]
    with tables_kept(pair.eager_pools.tables), calls_of(pair.decoder.ops) as calls:
        for table, during in zip(both(pair.eager_pools.tables), recorded.eager_tables, strict=True):
            table.copy_(during)
        pair.decoder.forward(pair.eager.batch_of(batch.mode, spans))
    return calls
