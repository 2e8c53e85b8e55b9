"""Verify draft trees on a release, wronged in turn; print what was judged, as JSON.

A script: one release per process. `python -m properties.engines.mutated_verify PACKAGE
PAGE_SIZE MUTATION …`, where `none` is the release as it is, and `elements` wrongs one element of
each static list in turn, right before its graph is launched.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from paritybit.harness.campaigns.hunt import whole
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STATE_PROPERTIES, STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.sglang import RunnerEngines, load
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.padding import PaddingLedger
from paritybit.harness.engines.playlist import VERIFYING
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.subjects.engines.sglang.engine import ReplayingEngine
from paritybit.subjects.engines.sglang.runners.verify import DRAFTS, TargetVerifyRunner

Run = Callable[[], Any]


def heal_req_pool_pad(runner: TargetVerifyRunner, batch: Any, run: Run) -> Any:
    """Reset all request rows first."""
    runner.inputs()["req_pool_indices"].zero_()
    return run()


def leave_tail(name: str, each: int, runner: TargetVerifyRunner, batch: Any, run: Run) -> Any:
    """Populate, and give the tail of one buffer back what it held."""
    tail = runner.inputs()[name][batch.batch_size * each :]
    stale = tail.clone()
    given = run()
    tail.copy_(stale)
    return given


def lose_a_token(runner: TargetVerifyRunner, batch: Any, run: Run) -> Any:
    """Give the last draft of the first request another token."""
    given = run()
    token = runner.inputs()["input_ids"][DRAFTS - 1 : DRAFTS]
    token.copy_((token + 1) % 96)
    return given


def forget_mask(runner: TargetVerifyRunner, batch: Any, run: Run) -> Any:
    """Let the mask of the trees be what it was."""
    bits = len(batch.spec_info.custom_mask)
    batch.spec_info.custom_mask = runner.mask[:bits].bool()
    return run()


def flip_a_bit(runner: TargetVerifyRunner, batch: Any, run: Run) -> Any:
    """Hide its parent, the root, from the first draft of the first request."""
    mask = batch.spec_info.custom_mask.clone()
    length = int(batch.seq_lens[0])
    mask[(length + DRAFTS) + length] = False
    batch.spec_info.custom_mask = mask
    return run()


MUTATIONS: dict[str, Callable[[TargetVerifyRunner, Any, Run], Any]] = {
    "heal_req_pool_pad": heal_req_pool_pad,
    "leave_rows": partial(leave_tail, "req_pool_indices", 1),
    "leave_locations": partial(leave_tail, "out_cache_loc", DRAFTS),
    "lose_a_token": lose_a_token,
    "forget_mask": forget_mask,
    "flip_a_bit": flip_a_bit,
}


def populates(runner: TargetVerifyRunner) -> tuple[Any, str]:
    """Return what fills the runner's static inputs, and the name of its method for that."""
    registry = getattr(runner.runner, "buffer_registry", None)
    if registry is not None:
        return type(registry), "fill_from"
    return type(runner.runner.buffers), "populate_from_forward_batch"


@contextmanager
def mutated(runner: TargetVerifyRunner, mutation: str) -> Iterator[None]:
    """Wrong what a runner populates for a while, unless `mutation` is none."""
    owner, name = populates(runner)
    populate = getattr(owner, name)

    def other(held: Any, *given: Any, **named: Any) -> Any:
        batch = named["forward_batch"] if "forward_batch" in named else given[0]
        run = partial(populate, held, *given, **named)
        return MUTATIONS[mutation](runner, batch, run)

    if mutation != "none":
        setattr(owner, name, other)
    yield
    setattr(owner, name, populate)


def verifying(lockstep: Lockstep, mutation: str) -> dict[str, Any]:
    """Return what the runner shows with our arithmetic."""
    subject = lockstep.pair.subject
    assert isinstance(subject, ReplayingEngine)
    assert isinstance(subject.runner, TargetVerifyRunner)
    ledger = PaddingLedger(subject, lockstep.pair)
    ledger.at_once = len(ledger.entries)
    leg = Leg(lockstep, Evidence("target_verify"), OURS)
    if mutation == "none":
        leg.ledger = ledger
    with mutated(subject.runner, mutation):
        leg.play(VERIFYING, frozenset(PROPERTIES) if mutation == "none" else STEP_PROPERTIES)
    return {
        "violated": sorted(leg.failing),
        "replays": leg.result.replays,
        "padded": leg.result.padded_replays,
        "padding": {name: entry.verdict for name, entry in ledger.entries.items()},
        "broken_policies": [rule for rule in ledger.policies() if rule["holds"] == "no"],
        "unasked": lockstep.unasked,
        "events": dict(leg.result.events),
    }


LISTS = {
    "attention.qo_indptr": 1,
    "attention.kv_indptr": 1,
    "attention.cuda_graph_kv_indices": 0,
    "attention.window_kv_indptr": 1,
    "attention.cuda_graph_window_kv_indices": 0,
    "attention.cuda_graph_window_kv_offsets": 0,
    "attention.mask_indptr": 1,
    "positions": 0,
    "out_cache_loc": 0,
}
"""Static lists that the captured verify reads, and the element that is one too high."""


@contextmanager
def wronged(runner: TargetVerifyRunner, name: str) -> Iterator[None]:
    """Add one to an element of a static list before each launch, for a while."""
    launch = torch.cuda.CUDAGraph.replay

    def other(graph: Any) -> None:
        runner.statics()[name][LISTS[name]] += 1
        launch(graph)

    torch.cuda.CUDAGraph.replay = other  # type: ignore[method-assign,assignment]
    yield
    torch.cuda.CUDAGraph.replay = launch  # type: ignore[method-assign]


def elements(lockstep: Lockstep) -> dict[str, list[str]]:
    """Return what one wrong element of each list violates."""
    subject = lockstep.pair.subject
    assert isinstance(subject, ReplayingEngine)
    assert isinstance(subject.runner, TargetVerifyRunner)
    found = {}
    for name in LISTS:
        with wronged(subject.runner, name):
            found[name] = sorted(whole(lockstep.play(VERIFYING)).violated)
    return found


def main(package: str, page_size: str, *mutations: str) -> None:
    """Play with our arithmetic; print what it shows."""
    warnings.simplefilter("ignore")
    engine = load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    trial = TrialConfig(runner="target_verify", page_size=int(page_size))
    lockstep = Lockstep(trial, engines=RunnerEngines(engine))
    found: dict[str, Any] = {
        mutation: verifying(lockstep, mutation) for mutation in mutations if mutation != "elements"
    }
    if "elements" in mutations:
        lockstep.watch(STATE_PROPERTIES)
        found["elements"] = elements(lockstep)
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
