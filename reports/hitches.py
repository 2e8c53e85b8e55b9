"""Problems during a run that took time and did not change the verdict."""

from collections.abc import Iterator, Sequence

from paritybit.harness.records.schema import STALLED, Record, RunAgain
from paritybit.reports.texts import Fact

NAMED = 3
"""The number of tasks that are listed. The record has all."""


def hitches(record: Record) -> Iterator[Fact]:
    """Yield the problems that delayed a run."""
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
    """Return a sentence with the tasks that were run again, and their first ends."""
    count, named = len(again), "; ".join(f"{one.task} ({one.error})" for one in again[:NAMED])
    tasks = "1 task was" if count == 1 else f"{count} tasks were"
    more = f"; and {count - NAMED} more" if count > NAMED else ""
    return (
        f"{tasks} run again because another process or its machine may have ended the "
        f"first run: {named}{more}"
    )
