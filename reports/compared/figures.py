"""Compares two runs by environment, coverage and speed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paritybit.harness.records.schema import Environment, Record, TrialRow
from paritybit.reports.texts import duration, or_dash


@dataclass(frozen=True)
class Figure:
    """A figure or a fact in both runs."""

    name: str
    before: str
    after: str


def environment(before: Record, after: Record) -> Iterator[Figure]:
    """Yield the differences between the environments."""
    settings = {
        "command": (before.command, after.command),
        "seed": (before.seed, after.seed),
        "examples": (before.examples, after.examples),
    }
    versions = facts_of(before.environment), facts_of(after.environment)
    both = settings | {name: (versions[0][name], versions[1][name]) for name in versions[0]}
    for name, (old, new) in both.items():
        if old != new:
            yield Figure(name.replace("_", " "), or_dash(old), or_dash(new))


def facts_of(environment: Environment) -> dict[str, Any]:
    """Return an environment as values to compare, with the number of tasks run again."""
    return asdict(environment) | {"again": len(environment.again)}


def coverage(before: Record, after: Record) -> Iterator[Figure]:
    """Yield how often the clean trials of each run reached each state."""
    counts = events(before), events(after)
    for name in sorted(counts[0] | counts[1]):
        yield Figure(name, f"{counts[0][name]:,}", f"{counts[1][name]:,}")


def events(record: Record) -> Counter[str]:
    """Return how often the clean trials of a run reached each state."""
    counts = Counter(dict.fromkeys(record.required_events, 0))
    for trial in record.clean:
        counts.update(trial.events)
    return counts


def speed(before: Record, after: Record) -> Iterator[Figure]:
    """Yield the times of both runs, and the clean steps per second of each runner."""
    yield Figure("time taken", duration(before.seconds), duration(after.seconds))
    yield Figure("schedules to detection, mean", _mean_drawn(before), _mean_drawn(after))
    rates = _rates(before), _rates(after)
    for runner in rates[0] | rates[1]:
        values = [f"{rate[runner]:.0f}" if runner in rate else "–" for rate in rates]
        yield Figure(f"{runner}, clean steps a second", values[0], values[1])


def _mean_drawn(record: Record) -> str:
    drawn = [bug.schedules_to_detection for bug in record.bugs]
    detected = [schedules for schedules in drawn if schedules is not None]
    return f"{sum(detected) / len(detected):.1f}" if detected else "–"


def _rates(record: Record) -> dict[str, float]:
    """Return the clean steps per second, by runner."""
    trials: dict[str, list[TrialRow]] = {}
    for trial in record.clean:
        trials.setdefault(trial.trial.runner, []).append(trial)
    return {runner: _rate(of_runner) for runner, of_runner in trials.items()}


def _rate(trials: Sequence[TrialRow]) -> float:
    seconds = sum(trial.seconds for trial in trials)
    return sum(trial.steps for trial in trials) / seconds if seconds else 0.0
