"""The locksteps that a process keeps. With pools that fill its memory, it keeps one at a time."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from paritybit.harness.campaigns.hunt import without_error
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.explain.facts import Explanation, Situation, Suspect, TimelineEntry
from paritybit.harness.explain.reach import Reaching
from paritybit.harness.explain.report import Explained, explanation, observe, without_trial
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import with_small_pools
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.bugs.catalogue import BUGS

Build = Callable[[TrialConfig], Lockstep]


class Locksteps:
    """Locksteps by trial. Each is built once while it is kept.

    A lockstep with large pools is the only one. Do not keep a reference to it while you ask for
    another one.
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
        """Release a lockstep with large pools, so that another process can use its memory."""
        if any(trial.large for trial in self.held):
            self.clear()

    def clear(self) -> None:
        """Drop all locksteps and release their memory."""
        self.held.clear()
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


LARGE = Locksteps()
"""The locksteps with large pools that a process keeps between tasks."""


@lru_cache(maxsize=1)
def kept_clean(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a clean trial, kept for all bugs that are compared with it."""
    return Lockstep(trial)


@lru_cache(maxsize=1)
def kept_broken(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a trial with a bug, kept for consecutive tasks of this trial."""
    return Lockstep(trial)


def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the kept lockstep of a trial."""
    return kept_clean(trial) if trial.bug is None else kept_broken(trial)


@lru_cache(maxsize=1)
def kept_reaching(trial: TrialConfig) -> Reaching:
    """Return the `Reaching` of a trial with a bug. Its clean engine is captured once."""
    assert trial.bug is not None
    return Reaching(kept_lockstep(trial).pair, BUGS[trial.bug])


def forget_kept() -> None:
    """Drop all kept locksteps."""
    for kept in (kept_clean, kept_broken, kept_reaching):
        kept.cache_clear()


def explained_small(
    locksteps: Build,
    trial: TrialConfig,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explained:
    """Explain the violations of a schedule, with small pools if those of the trial are large.

    An explanation copies all KV many times, and does not support skipped slot numbers. A violation
    that does not occur with small pools is not explained, unless it is due to these slot numbers.
    The slots in the explanation are those of the small pools, as its first sentence states.

    An error of the explainer becomes a traceback: the violations stay as they are.
    """
    try:
        return Explained(_explanation(locksteps, trial, schedule, outcome, timeline, target))
    except Exception as error:
        return Explained(error=traceback_of(error))


def _explanation(
    locksteps: Build,
    trial: TrialConfig,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explanation | None:
    """Explain as `explained_small` does."""
    if not (trial.large or trial.skipped_slots):
        return explanation(locksteps(trial), schedule, outcome, timeline, target)
    small = locksteps(with_small_pools(trial))
    small.watch(PROPERTIES)
    again, entries = observe(small, schedule)
    wanted = {target} if target is not None else outcome.violated
    shown = without_error(again).violated
    if trial.skipped_slots and not shown:
        return narrowed_slot(outcome, target)
    if not wanted & shown:
        return None
    found = explanation(small, schedule, again, entries, target)
    if found is None:
        return None
    pools = f"{small.trial.full_slots} full and {small.trial.swa_slots} SWA slots"
    said = f"The explanation uses smaller pools ({pools}), in which the finding appears too."
    if trial.skipped_slots:
        said = "The explanation skips no slot numbers; the finding appears without that too."
    return replace(found, proof=(said, *found.proof))


def narrowed_slot(outcome: Outcome, target: str | None) -> Explanation:
    """Explain a violation that only occurs with slot numbers that need many bits.

    A slot number, or a product of one, is narrowed on its way to the pool.
    """
    violation = next(
        (one for one in outcome.violations if one.property == target), outcome.violations[0]
    )
    suspects = (Suspect("large slot numbers", "holds"),)
    return without_trial(violation, Situation(violation.step, None), suspects)
