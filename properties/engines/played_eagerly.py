"""Play the first schedule on a release in its own eager mode; print what was judged, as JSON.

A script: one release per process. `python -m properties.engines.played_eagerly PACKAGE ENGINE
RUNNER`. It is played as the release is, and with its first live logit, or score of a draft,
another than it gives.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.legs import EAGERLY, Leg
from paritybit.harness.engines.playlist import FIRST, Kind
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.subjects.protocol import Forward


def main(package: str, name: str, runner: str) -> None:
    """Play both ways; print what is violated, and how much was played and replayed."""
    warnings.simplefilter("ignore")
    adapter = ADAPTERS[name]
    engine = adapter.load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    trial = adapter.trial_of(runner, "gpt_oss", Kind.OWN_EAGER, "cpu")
    lockstep = adapter.own_eager(engine, trial, set())
    subject: Any = lockstep.pair.subject
    own = subject.forward

    def changed(batch: ForwardBatch | None, mode: Mode) -> Forward:
        given: Forward = own(batch, mode)
        given.output["scores" if batch and batch.mode.drafts else "logits"][0, 0] += 1
        return given

    found = {}
    for label, forward in (("none", own), ("changed", changed)):
        subject.forward = forward
        leg = Leg(lockstep, Evidence(runner, adapter.faults), EAGERLY)
        leg.play(FIRST[runner], STEP_PROPERTIES)
        found[label] = {
            "violated": sorted(leg.failing),
            "steps": leg.result.steps,
            "replays": leg.result.replays,
        }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
