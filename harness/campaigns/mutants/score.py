"""The score of a mutant campaign: how many are detected, and which survive without a reason."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from paritybit.harness.campaigns.executor import Ended, execute
from paritybit.harness.campaigns.mutants.hunting import MUTANTS, End, Hunted, MutantHunt
from paritybit.harness.campaigns.mutants.survivors import survivor
from paritybit.harness.errors import headline
from paritybit.harness.machine.workers import Workers

FAILED = "failed"
"""The end of a mutant without a verdict because of an internal error."""

AS_HOPED = frozenset({End.SEEN, End.CANNOT_MATTER})

WORST_FIRST = (FAILED, End.CLEAN_IS_RED, End.SURVIVED, End.CANNOT_MATTER, End.SEEN)

MutantEnded = Ended[MutantHunt, Hunted]


def hunt_all(
    hunts: Sequence[MutantHunt], workers: Workers, on_end: Callable[[MutantEnded], None]
) -> None:
    """Hunt all mutants with `workers`. `on_end` is called with each end."""
    execute(MUTANTS, hunts, workers, on_end)


def end_of(ended: MutantEnded) -> str:
    """Return the end of a mutant, which is the worst end of its seeds."""
    if ended.result is None:
        return FAILED
    ends = {sighting.end for sighting in ended.result.sightings}
    return next(str(end) for end in WORST_FIRST if end in ends)


def mutant_figures(
    ends: Sequence[MutantEnded], planned: int, seconds: float, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return the results of a campaign as JSON data, survivors and their reasons first."""
    rows = sorted((row_of(ended) for ended in ends), key=lambda row: str(row["mutant"]))
    counts = Counter(row["end"] for row in rows)
    good = sum(counts[end] for end in AS_HOPED)
    errors = [
        {"task": ended.task.mutant.name, "error": ended.error} for ended in ends if ended.error
    ]
    bad = [f"{row['mutant']} ({row['end']})" for row in rows if row["end"] not in AS_HOPED]
    return {
        **settings,
        "planned": planned,
        "counts": dict(counts),
        "rows": rows,
        "errors": errors,
        "seconds": round(seconds, 1),
        "as_hoped": good == planned,
        "undecided": good < planned and good + len(errors) == len(rows),
        "message": (
            f"{counts[End.SEEN]} of {planned} mutants detected with every seed; "
            f"{counts[End.CANNOT_MATTER]} proved harmless; neither: "
            f"{', '.join(bad) or 'none'}"
            + "".join(f"; {error['task']} failed: {headline(error['error'])}" for error in errors)
        ),
    }


def row_of(ended: MutantEnded) -> dict[str, Any]:
    """Return the result of one mutant as JSON data."""
    mutant = ended.task.mutant
    sightings = () if ended.result is None else ended.result.sightings
    known = survivor(mutant)
    return {
        "mutant": mutant.name,
        "runner": mutant.runner,
        "mistake": str(mutant.mistake),
        "end": end_of(ended),
        "reason": known.because if known and end_of(ended) == End.CANNOT_MATTER else None,
        "schedules": [sighting.schedules for sighting in sightings],
        "properties": sorted({name for sighting in sightings for name in sighting.properties}),
        "seconds": round(ended.seconds, 1),
    }
