"""Measures the share of captures in the CPU time of a few fixed hunts.

A hunt runs as in `regress`, but in this process: a new lockstep plays what a fresh process would.
The garbage collector runs as rarely as there.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from paritybit.harness.campaigns.fresh import FreshPlaying, built
from paritybit.harness.campaigns.locksteps import Locksteps
from paritybit.harness.campaigns.task import Source, Task, run_task
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.explain.reach import Reaching
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.machine.forks import few_collections
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.captured import CapturedEngine

EXAMPLES = 50
"""The limit of schedules per hunt, as in `regress`."""

HUNTS = (
    ("window_one_short", "decode"),
    ("page_offset_int32", "decode"),
    ("workspace_regrown_by_capture", "decode"),
    ("req_pool_pad", "target_verify"),
    ("block_table_pad", "target_verify"),
    ("extend_counts_pad", "eagle_draft_extend"),
    ("draft_store_int32", "eagle_draft_extend"),
    ("loc_memo_capture", "eagle_draft_extend"),
    ("token_offset_int32", "piecewise"),
    ("evicts_by_chunk", "piecewise"),
)
"""Bugs and runners. Two of the bugs capture everything first, the others only what is needed."""


@dataclass
class Engines:
    """Builds locksteps, and collects their engines."""

    found: list[CapturedEngine] = field(default_factory=list)

    def build(self, trial: TrialConfig) -> Lockstep:
        """Return the lockstep of a trial."""
        return self._seen(Lockstep(trial))

    def play_fresh(self, playing: FreshPlaying) -> Outcome:
        """Play on new engines what a fresh process would play."""
        lockstep = self._seen(built(playing.trial, playing.properties))
        if playing.captures_all:
            lockstep.pair.capture(lockstep.pair.modes)
        *history, last = playing.schedules
        for schedule in history:
            lockstep.play(schedule, until=playing.until)
        return lockstep.play(last, until=playing.until)

    def _seen(self, lockstep: Lockstep) -> Lockstep:
        self.found += lockstep.pair.captures.engines
        return lockstep


@few_collections()
def share_of_captures(device: str) -> dict[str, Any]:
    """Return the CPU seconds of all hunts and the share of captures.

    Raises RuntimeError if a hunt does not find its bug.
    """
    engines, started = Engines(), time.process_time()
    locksteps = Locksteps(engines.build)
    for bug, runner in HUNTS:
        trial = TrialConfig(runner, device=device).with_bug(bug)
        result = run_task(Task(trial, Source.GENERATED, 0, EXAMPLES), locksteps, engines.play_fresh)
        if result.finding is None or result.error is not None:
            raise RuntimeError(f"the hunt of {bug} on {runner} ended with: {result.status}")
        reaching = Reaching(locksteps(trial).pair, BUGS[bug])
        reaching.count([result.finding.schedule])
        engines.found.append(reaching.right.engine)
    seconds = time.process_time() - started
    capturing = sum(engine.capturing_seconds for engine in engines.found)
    return {
        "hunts": [f"{bug}@{runner}" for bug, runner in HUNTS],
        "seconds": round(seconds, 2),
        "share_of_captures": round(capturing / seconds, 3),
    }
