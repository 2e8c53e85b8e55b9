"""What did not go smoothly while a run was carried out: it took time, and changed no verdict."""

from collections.abc import Iterator, Sequence

from paritybit.harness.records.schema import STALLED, Record, RunAgain
from paritybit.reports.texts import Fact

NAMED = 3
"""How many tasks are named; the record has them all."""


def hitches(record: Record) -> Iterator[Fact]:
    """Yield what took a run longer than its tasks take."""
    if record.environment.again:
        yield Fact("run again", run_again(record.environment.again))
    stalled = sum(row.events.get(STALLED, 0) for row in (*record.clean, *record.bugs))
    if stalled:
        yield Fact(
            "delayed streams released by a timeout",
            f"{stalled}: with overlapping steps, the host waited about 4 s for each, and "
            "the run may have missed a race",
        )


def run_again(again: Sequence[RunAgain]) -> str:
    """Return in one sentence which tasks were run again, and how each ended at first."""
    count, named = len(again), "; ".join(f"{one.task} ({one.error})" for one in again[:NAMED])
    tasks = "1 task was" if count == 1 else f"{count} tasks were"
    more = f"; and {count - NAMED} more" if count > NAMED else ""
    return (
        f"{tasks} run again because another process or its machine may have ended the "
        f"first run: {named}{more}"
    )
