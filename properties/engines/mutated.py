"""Play one schedule on a release, its populate mutated in turn; print what was judged, as JSON.

A script: one release per process. `python -m properties.engines.mutated PACKAGE MUTATION …`,
where `none` is the release as it is.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.sglang import RunnerEngines, load
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.legs import OURS, OWN, Leg
from paritybit.harness.engines.padding import PaddingLedger
from paritybit.harness.engines.playlist import FIRST, OWN_BOUND, REUSING, SHRINKING, Kind, trial_of
from paritybit.harness.engines.windows import measure, window_findings
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.subjects.engines.sglang.engine import ReplayingEngine
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.protocol import OwnArithmetic

Populate = Callable[..., None]

FORWARDS = 200
"""Forwards that shrinking one schedule may take: enough for the smallest there is."""


def heal_swa_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Reset the SWA locations of a padded batch first."""
    if named["bs"] != named["raw_bs"]:
        buffers.out_cache_loc_swa.zero_()
    populate(buffers, **named)


def plant_swa_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Leave the SWA locations of padded rows as they were."""
    leave_tail(buffers.out_cache_loc_swa, buffers, populate, named)


def plant_full_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Leave the full locations of padded rows as they were."""
    leave_tail(buffers.out_cache_loc, buffers, populate, named)


def heal_req_pool_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Reset the request rows of a padded batch first."""
    if named["bs"] != named["raw_bs"]:
        buffers.req_pool_indices.zero_()
    populate(buffers, **named)


def lose_a_token(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Give the first live row another token."""
    populate(buffers, **named)
    buffers.input_ids[:1] = (buffers.input_ids[:1] + 1) % 96


def leave_tail(buffer: Any, buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Populate, and give the tail of one buffer back what it held."""
    tail = buffer[named["raw_bs"] :]
    stale = tail.clone()
    populate(buffers, **named)
    tail.copy_(stale)


MUTATIONS = {
    mutation.__name__: mutation
    for mutation in (heal_swa_pad, plant_swa_pad, plant_full_pad, heal_req_pool_pad, lose_a_token)
}


@contextmanager
def mutated(runner: Any, mutation: str) -> Iterator[None]:
    """Wrap the populate of a runner's buffers for a while, unless `mutation` is none."""
    kind = type(runner.runner.buffers)
    populate = kind.populate_from_forward_batch

    def other(buffers: Any, **named: Any) -> None:
        MUTATIONS[mutation](buffers, populate, named)

    if mutation != "none":
        kind.populate_from_forward_batch = other
    yield
    kind.populate_from_forward_batch = populate


def decoding(lockstep: Lockstep, mutation: str) -> dict[str, Any]:
    """Return what the decode runner shows with our arithmetic."""
    subject = lockstep.pair.subject
    assert isinstance(subject, ReplayingEngine)
    ledger = PaddingLedger(subject, lockstep.pair)
    ledger.at_once = len(ledger.entries)
    leg = Leg(lockstep, Evidence("decode"), OURS, ledger=ledger)
    with mutated(subject.runner, mutation):
        leg.play(SHRINKING)
        leg.ledger = None
        return {
            "faults": verdicts(leg.evidence),
            "findings": [finding.to_json() for finding in leg.findings()],
            "violated": sorted(leg.failing),
            "padded": leg.result.padded_replays,
            "padding": {name: entry.verdict for name, entry in ledger.entries.items()},
            "shrunk": shrunk(leg) if mutation == "none" else {},
            "causes": leg.causes,
            "unasked": lockstep.unasked,
        }


def shrunk(leg: Leg) -> dict[str, int]:
    """Return how many steps each case has that a leg leaves, by its target."""
    return {str(case.target): len(case.schedule.steps) for case in leg.cases(0, FORWARDS)}


def verdicts(evidence: Evidence) -> dict[str, str]:
    """Return the verdict on each fault class that could be asked about."""
    return {judged.fault: judged.verdict for judged in evidence.judge()}


def unmutated(engine: Engine) -> dict[str, Any]:
    """Return what the other legs say: its own kernels, and what other runners populate."""
    trial = trial_of("piecewise", "mimo", Kind.REPLAYED, "cpu")
    prefill = Leg(Lockstep(trial, engines=RunnerEngines(engine)), Evidence("piecewise"), OURS)
    prefill.play(FIRST["piecewise"])
    return {
        **own_kernels(engine),
        "piecewise": verdicts(prefill.evidence),
    }


def own_kernels(engine: Engine) -> dict[str, Any]:
    """Return what the engine's own kernels see, and whether they are off the oracle."""
    trial = trial_of("decode", "gpt_oss", Kind.OWN_KERNELS, "cpu")
    lockstep = Lockstep(trial, engines=RunnerEngines(engine, own_kernels=True))
    seen = measure(lockstep.pair)
    windows, found = window_findings(trial, lockstep.pair.config.window, seen)
    lockstep.pair.subject.arithmetic = OwnArithmetic(windows, OWN_BOUND["cpu"])
    leg = Leg(lockstep, Evidence("decode"), OWN)
    leg.play(REUSING, {"dense_agreement"})
    listed = [finding.message for finding in found if finding.listed]
    return {"windows": seen, "listed": listed, "off": "dense_agreement" in leg.failing}


def main(package: str, *mutations: str) -> None:
    """Play with our arithmetic and, unmutated, all other legs; print what they show."""
    warnings.simplefilter("ignore")
    engine = load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    lockstep = Lockstep(TrialConfig(), engines=RunnerEngines(engine))
    found = {mutation: decoding(lockstep, mutation) for mutation in mutations}
    found["none"] |= unmutated(engine)
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
