"""The scope of a run: what it tried and what it did not, for terminal, record and page."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from paritybit.harness.campaigns.plan import all_hunts
from paritybit.harness.campaigns.run import Run, first_of
from paritybit.harness.campaigns.task import Result
from paritybit.harness.lockstep.config import DEVICES
from paritybit.harness.records.schema import Scope
from paritybit.reference.config import PRESETS, SPECULATION
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

NARROWED = ("model", "location scheme")
"""Axes whose values count as states that a full run reaches, in addition to `required_events`."""


def scope(run: Run) -> Scope:
    """Return the scope of a run's clean trials. A trial without a replay tried nothing."""
    results = [r for r in run.results if r.task.bug is None and r.hunt_result.replays]
    events = Counter[str]()
    for result in results:
        events.update(result.hunt_result.events)
    everything = replace(run.settings, hunts=all_hunts(), presets=tuple(PRESETS))
    states = [event for event in everything.required_events if not events[event]]
    for axis, values in missing_of(results).items():
        states += [f"replay with {axis} {value}" for value in values if axis in NARROWED]
    unreached = tuple(states)
    return Scope(
        "; ".join(tried(results)) if results else "nothing",
        "; ".join(untried(results, unreached)),
        unreached,
    )


def tried(results: list[Result]) -> Iterable[str]:
    """Yield what the trials tried, one quantity at a time."""
    trials = [result.task.trial for result in results]
    yield f"runners {listed(dict.fromkeys(trial.runner for trial in trials))}"
    yield f"device {listed(sorted({trial.device for trial in trials}))}"
    yield f"models {listed(sorted({trial.preset for trial in trials}))}"
    yield f"pages of {listed(sorted({trial.page_size for trial in trials}))} slots"
    yield f"buckets of up to {max(max(trial.buckets) for trial in trials)} requests"
    if widths := drafted(results):
        yield f"topk {listed(widths)}, {SPECULATION.draft_tokens} draft tokens"
    if any(trial.overlap for trial in trials):
        yield "overlapping steps"
    replays = sum(result.hunt_result.replays for result in results)
    padded = sum(result.hunt_result.padded_replays for result in results)
    yield f"{replays:,} replays, {padded:,} padded"


def drafted(results: list[Result]) -> list[int]:
    """Return the widths of drafts, in branches, of the trials whose runner speculates."""
    trials = (result.task.trial for result in results)
    return sorted({trial.topk for trial in trials if RUNNERS[trial.runner].mode.speculates})


def missing_of(results: list[Result]) -> dict[str, list[str]]:
    """Return the values that no trial had, for each axis with missing values."""
    trials = [result.task.trial for result in results]
    axes: dict[str, tuple[Iterable[str], set[str]]] = {
        "runner": (RUNNERS, {trial.runner for trial in trials}),
        "device": (DEVICES, {trial.device for trial in trials}),
        "model": (PRESETS, {trial.preset for trial in trials}),
        "location scheme": (LocationScheme, {trial.scheme for trial in trials}),
    }
    missing = {
        axis: [str(value) for value in values if value not in had]
        for axis, (values, had) in axes.items()
    }
    return {axis: values for axis, values in missing.items() if values}


def untried(results: list[Result], unreached: tuple[str, ...]) -> Iterable[str]:
    """Yield what a run did not try, including what this build does not support."""
    for axis, values in missing_of(results).items():
        yield f"{axis} {listed(values)}"
    if not any(result.task.trial.overlap for result in results):
        yield "overlapping steps"
    widths = drafted(results)
    topk = f"topk other than {listed(widths)}" if widths else "any topk"
    yield f"{topk}, longer contexts and other page sizes"
    if unreached:
        count = f"{len(unreached)} state{'s' * (len(unreached) > 1)}"
        yield f"{count} that a full run must reach: {first_of(unreached)}"


def listed(values: Iterable[object]) -> str:
    """Return values as text with commas and "and"."""
    texts = [str(value) for value in values]
    return ", ".join(texts[:-1]) + " and " + texts[-1] if len(texts) > 1 else "".join(texts)
