"""Play one schedule of drafts on a release, what it populates mutated in turn; print what is red.

A script: one release per process. `python -m properties.engines.mutated_drafts PACKAGE RUNNER …`.
The answer is JSON: by runner, what the release as it is violates, of that what follows from what
it ran before, and what each mutation of it violates.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.sglang import drafting_lockstep, load
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.playlist import DRAFTING
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.batch import ForwardBatch
from paritybit.subjects.engines.sglang.draft_engine import DraftingEngine
from paritybit.subjects.engines.sglang.runners.drafting import DraftingRunner
from paritybit.subjects.engines.shared.loading import Engine
from torch import Tensor


@dataclass(frozen=True)
class Mutation:
    """A change of one static input of a padded batch, after it is populated.

    `tail` says whether its padding is changed or the row of its first request, which `change`
    is given either way, and which it gives the new value of.
    """

    buffer: str
    tail: bool
    change: Callable[[Tensor], Tensor]


def kept(row: Tensor) -> Tensor:
    """Return a row as it is: what padding holds that was not reset."""
    return row


def other(row: Tensor) -> Tensor:
    """Return another valid row."""
    return (row + 1) % 96


def stale(row: Tensor) -> Tensor:
    """Return what the row held at first."""
    return row * 0


def shorter(row: Tensor) -> Tensor:
    """Return a length that is one short."""
    return row - 1


MUTATIONS = {
    "rows_not_reset": Mutation("req_pool_indices", True, kept),
    "locations_not_reset": Mutation("out_cache_loc", True, kept),
    "length_one_short": Mutation("seq_lens", False, shorter),
    "position_stale": Mutation("positions", False, stale),
    "hidden_states_stale": Mutation("hidden_states", False, stale),
    "topk_index_wrong": Mutation("topk_index", False, other),
    "input_ids_wrong": Mutation("input_ids", False, other),
}


@contextmanager
def mutated(runner: DraftingRunner, mutation: Mutation) -> Iterator[None]:
    """Mutate each padded batch of a runner before its attention is planned, for a while."""
    backend, drafted = planning(runner), runner.drafted
    plan, live = backend.init_forward_metadata_out_graph, 0

    def counted(batch: ForwardBatch, *rest: Any) -> Any:
        nonlocal live
        live = batch.live_requests
        return drafted(batch, *rest)

    def planned(given: Any, *rest: Any, **named: Any) -> None:
        sizes, buffer = runner.runner.capture_bs, getattr(runner.runner.buffers, mutation.buffer)
        bucket = next(size for size in sizes if size >= live)
        each = len(buffer) // max(sizes)
        if live < bucket:
            places = slice(live * each, bucket * each) if mutation.tail else slice(0, each)
            buffer[places] = mutation.change(buffer[:1])
        plan(given, *rest, **named)

    vars(runner)["drafted"] = counted
    backend.init_forward_metadata_out_graph = planned
    yield
    del vars(runner)["drafted"]
    backend.init_forward_metadata_out_graph = plan


def planning(runner: DraftingRunner) -> Any:
    """Return the backend that plans the attention of a runner's batches."""
    return getattr(runner, "draft_backend", runner.catching_backend)


def shown(engine: Engine, name: str, *, plants: bool) -> dict[str, Any]:
    """Return what a runner violates as it is and, if it `plants`, with each mutation."""
    lockstep, refused = drafting_lockstep(engine, TrialConfig(runner=name, buckets=(4,)))
    subject = lockstep.pair.subject
    assert isinstance(subject, DraftingEngine)
    outcome = lockstep.play(DRAFTING)
    found: dict[str, Any] = {
        "none": sorted(outcome.violated),
        "replays": outcome.replays,
        "padded": outcome.padded_replays,
        "refused": refused,
    }
    lockstep.watch({"hermetic_replay"})
    found["history"] = sorted(lockstep.play(DRAFTING).violated)
    lockstep.watch(STEP_PROPERTIES)
    for label, mutation in MUTATIONS.items() if plants else ():
        if getattr(subject.runner.runner.buffers, mutation.buffer, None) is not None:
            with mutated(subject.runner, mutation):
                found[label] = sorted(lockstep.play(DRAFTING).violated)
    return found


def main(package: str, plants: str, *runners: str) -> None:
    """Play each runner and print what it shows."""
    warnings.simplefilter("ignore")
    engine = load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    found = {name: shown(engine, name, plants=plants == "plant") for name in runners}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
