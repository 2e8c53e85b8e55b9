"""The scope of a run: what it tried and what it did not, for terminal, record and page."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from paritybit.harness.campaigns.plan import all_hunts
from paritybit.harness.campaigns.run import Run, first_of
from paritybit.harness.lockstep.config import DEVICES, TURNS, TrialConfig
from paritybit.harness.records.schema import Scope
from paritybit.reference.config import PRESETS
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

STEPS = ("in order", "overlapping")

AXES: Mapping[str, tuple[Iterable[object], Callable[[TrialConfig], object]]] = {
    "runner": (RUNNERS, attrgetter("runner")),
    "device": (DEVICES, attrgetter("device")),
    "model": (PRESETS, attrgetter("preset")),
    "location scheme": (LocationScheme, attrgetter("scheme")),
    "slots per page": (sorted({size for size, _ in TURNS}), attrgetter("page_size")),
    "steps": (STEPS, lambda trial: STEPS[trial.overlap]),
}
"""What differs between trials: all values, and that of a trial."""


def scope(run: Run) -> Scope:
    """Return the scope of a run's clean trials. A trial without a replay tried nothing."""
    results = [one for one in run.results if one.task.bug is None and one.search_result.replays]
    tried, untried, events = list[str](), list[str](), Counter[str]()
    for result in results:
        events.update(result.search_result.events)
    for axis, (values, of_trial) in AXES.items():
        had = {of_trial(result.task.trial) for result in results}
        for texts, chosen in ((tried, True), (untried, False)):
            named = [str(value) for value in values if (value in had) is chosen]
            texts.extend([f"{axis} {', '.join(named)}"] if named else [])
    replays = sum(result.search_result.replays for result in results)
    padded = sum(result.search_result.padded_replays for result in results)
    tried.append(f"{replays:,} replays, {padded:,} padded")
    untried.append("longer contexts, other page sizes and trees of drafts")
    everything = replace(run.settings, hunts=all_hunts(), presets=tuple(PRESETS))
    unreached = tuple(event for event in everything.required_events if not events[event])
    if unreached:
        count = f"{len(unreached)} state{'s' * (len(unreached) > 1)}"
        untried.append(f"{count} that a full run must reach: {first_of(unreached)}")
    return Scope("; ".join(tried) if results else "nothing", "; ".join(untried))
