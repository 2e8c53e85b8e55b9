"""What scripts that plant faults in a release of vLLM have in common: one release per process."""

import json
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.adapters.vllm import VllmEngines
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.schedules.schedule import Schedule

ADAPTER = ADAPTERS["vllm"]

Plant = Callable[[Any], None]
"""Gets an engine under test wrong."""


def played(engine: Any, runner: str, plant: Plant, schedules: Iterable[Schedule]) -> Leg:
    """Return a leg that has played schedules on a runner with a fault planted in it."""

    def engines(pair: Any) -> Any:
        subject, fresh = VllmEngines(engine, set())(pair)
        plant(subject)
        return subject, fresh

    trial = ADAPTER.trial_of(runner, "gpt_oss", Kind.REPLAYED, "cpu")
    leg = Leg(Lockstep(trial, engines=engines), Evidence(runner, ADAPTER.faults), OURS)
    for schedule in schedules:
        leg.play(schedule, STEP_PROPERTIES)
    return leg


def shown_by(leg: Leg) -> dict[str, Any]:
    """Return what a leg shows, each violated property with its message."""
    return {
        "violated": {name: message for name, (_, message) in leg.failing.items()},
        "faults": {judged.fault: judged.verdict for judged in leg.evidence.judge()},
        "replays": leg.result.replays,
        "padded": leg.result.padded_replays,
    }


def say(
    package: str, shown: Callable[[Any, str], dict[str, Any]], mutations: Iterable[str]
) -> None:
    """Plant faults in a release one at a time, and print what each is `shown` to do."""
    warnings.simplefilter("ignore")
    engine = ADAPTER.load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    found = {mutation: shown(engine, mutation) for mutation in mutations}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
