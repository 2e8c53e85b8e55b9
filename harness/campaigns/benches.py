"""The locksteps that a process holds: of pools that fill its memory, one at a time."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from harness.campaigns.hunt import whole
from harness.checks.explanation import NOT_EXPLAINED, Explained, explained, observe
from harness.checks.play import Lockstep, Outcome
from harness.checks.table import PROPERTIES
from harness.explain.facts import TimelineEntry
from harness.lockstep.config import TrialConfig
from harness.lockstep.scale.shapes import with_small_pools
from harness.schedules.schedule import Schedule

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


def explained_small(
    benches: Build,
    trial: TrialConfig,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explained:
    """Explain what a schedule violated on a trial, with small pools if its own are large.

    An explanation copies all KV many times. What small pools do not show is not explained; its
    slots are theirs, which its first sentence says.
    """
    if not trial.large:
        return explained(benches(trial), schedule, outcome, timeline, target)
    small = benches(with_small_pools(trial))
    small.watch(PROPERTIES)
    again, entries = observe(small, schedule)
    wanted = {target} if target is not None else outcome.violated
    if not wanted & whole(again).violated:
        return NOT_EXPLAINED
    found = explained(small, schedule, again, entries, target)
    if found.explanation is None:
        return found
    pools = f"{small.trial.full_slots} full and {small.trial.swa_slots} SWA slots"
    said = f"Let the pools have {pools}, which can be copied, and show the same."
    proof = (said, *found.explanation.proof)
    return replace(found, explanation=replace(found.explanation, proof=proof))
