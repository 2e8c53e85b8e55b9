"""The order in which the tasks of a run begin: what costs least for each detection, first."""

import math
from collections.abc import Mapping
from functools import cache

from paritybit.harness.campaigns.measuring.before import EVIDENCE
from paritybit.harness.campaigns.task import Source, Task
from paritybit.harness.records.case import read_json

DETECTIONS = EVIDENCE / "cpu-detections.json"
"""The committed record of how many schedules each bug needs."""

OVERLAP_COST = 1.6
"""How many times as long a hunt takes if its steps overlap: 3.1 against 1.9 s on an H200."""


def order(task: Task) -> tuple[bool, float]:
    """Return the key by which the tasks of a run are sorted.

    Clean trials come first, those whose steps overlap before the others because they take longest.
    Hunts follow by the recorded number of schedules until the bug was detected, times how long a
    schedule takes. Hunts of bugs that cannot affect their runner detect nothing and come last.
    """
    if task.bug is None:
        return False, -float(task.trial.overlap)
    if task.target is None:
        return True, math.inf
    schedules = 1.0
    if task.source is Source.GENERATED:
        schedules = schedules_needed().get((task.bug.name, task.trial.runner), schedules)
    return True, schedules * (OVERLAP_COST if task.trial.overlap else 1.0)


@cache
def schedules_needed() -> Mapping[tuple[str, str], float]:
    """Return the recorded median of the schedules until each bug was detected on each runner.

    Empty in an installed package, which has no records.
    """
    if not DETECTIONS.exists():
        return {}
    rows = read_json(DETECTIONS)["figures"]["bugs"]
    return {(row["bug"], row["runner"]): row["median"] for row in rows if row["median"]}
