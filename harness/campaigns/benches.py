"""The locksteps that a process holds: of pools that fill its memory, one at a time."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from paritybit.harness.campaigns.hunt import whole
from paritybit.harness.checks.explanation import NOT_EXPLAINED, Explained, explained, observe
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.explain.facts import Cause, Explanation, Situation, TimelineEntry
from paritybit.harness.explain.origins.source_lines import source_lines
from paritybit.harness.explain.reach import Reaching
from paritybit.harness.explain.wrapped import wrapped_at
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import with_small_pools
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.bugs.catalogue import BUGS

Build = Callable[[TrialConfig], Lockstep]


class Benches:
    """Locksteps by their trial, each built once for as long as it is held.

    Where one has large pools it is the only one. So nobody else may hold one while another is
    asked for.
    """

    def __init__(self, build: Build = Lockstep) -> None:
        self.build = build
        self.held: dict[TrialConfig, Lockstep] = {}

    def __call__(self, trial: TrialConfig) -> Lockstep:
        """Return the lockstep of a trial."""
        if trial not in self.held:
            if trial.large:
                self.clear()
            self.release()
            self.held[trial] = self.build(trial)
        return self.held[trial]

    def release(self) -> None:
        """Give back the memory of what has large pools, so that another process may take it."""
        if any(trial.large for trial in self.held):
            self.clear()

    def clear(self) -> None:
        """Hold none, and give back the memory."""
        self.held.clear()
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


LARGE = Benches()
"""What a process holds of trials with large pools, from one task to the next."""


@lru_cache(maxsize=1)
def kept_clean(trial: TrialConfig) -> Lockstep:
    """Return a lockstep of a trial without a bug, built once for all bugs that are held to it."""
    return Lockstep(trial)


@lru_cache(maxsize=1)
def kept_broken(trial: TrialConfig) -> Lockstep:
    """Return a lockstep of a trial with a bug, built once for the tasks that follow one another."""
    return Lockstep(trial)


def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return a lockstep of a trial that is kept."""
    return kept_clean(trial) if trial.bug is None else kept_broken(trial)


@lru_cache(maxsize=1)
def kept_reaching(trial: TrialConfig) -> Reaching:
    """Return what follows the bug of a trial, with a right engine that is captured once."""
    assert trial.bug is not None
    return Reaching(kept_lockstep(trial).pair, BUGS[trial.bug])


def forget_kept() -> None:
    """Keep none of them any longer."""
    for kept in (kept_clean, kept_broken, kept_reaching):
        kept.cache_clear()


def explained_small(
    benches: Build,
    trial: TrialConfig,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explained:
    """Explain what a schedule violated on a trial, with small pools if its own are large.

    An explanation copies all KV many times, and knows no slot numbers that are skipped. What does
    not show over small pools is not explained, unless these numbers alone bring it about.
    The slots that an explanation names are those of the small pools: its first sentence says so.
    """
    if not (trial.large or trial.skipped_slots):
        return explained(benches(trial), schedule, outcome, timeline, target)
    small = benches(with_small_pools(trial))
    small.watch(PROPERTIES)
    again, entries = observe(small, schedule)
    wanted = {target} if target is not None else outcome.violated
    shown = whole(again).violated
    if trial.skipped_slots and not shown:
        first = trial.page_size + trial.skipped_slots
        numbers = range(first, trial.full_slots + first)
        given, made = wrapped_at(lambda: benches(trial).play(schedule), numbers)
        if not made:
            found = explained(benches(trial), schedule, outcome, timeline, target)
            made = () if found.explanation is None else found.explanation.cause.made
        cause = Cause("narrowed slot number", given=given, made=made)
        return Explained(narrowed_slot(trial, outcome, timeline, target, cause))
    if not wanted & shown:
        return NOT_EXPLAINED
    found = explained(small, schedule, again, entries, target)
    if found.explanation is None:
        return found
    pools = f"{small.trial.full_slots} full and {small.trial.swa_slots} SWA slots"
    said = f"The explanation uses smaller pools ({pools}), in which the finding appears too."
    if trial.skipped_slots:
        said = "The explanation skips no slot numbers; the finding appears without that too."
    proof = (said, *found.explanation.proof)
    return replace(found, explanation=replace(found.explanation, proof=proof))


def narrowed_slot(
    trial: TrialConfig,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
    cause: Cause,
) -> Explanation:
    """Explain what a schedule violates only where slot numbers are skipped."""
    found = next(
        (one for one in outcome.violations if one.property == target), outcome.violations[0]
    )
    runner = next((entry.runner for entry in timeline if entry.place == found.step), None)
    proof = (
        f"Let slots be numbered from {trial.page_size} on, not from "
        f"{trial.page_size + trial.skipped_slots:,}, and nothing else differ.",
        "Then the same schedule violates no property.",
        "So a slot number, or a product of one, is narrowed on its way to the pool.",
    )
    at = Situation(found.step, runner)
    return Explanation(found.property, at, cause, proof, sources=source_lines(None, cause))
