"""Play one schedule on a release, its host code mutated in turn; print what was judged, as JSON.

A script: one release per process. `python -m properties.engines.mutated_host PACKAGE PRESET RUNNER
MUTATION …`, where `none` is the release as it is.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.sglang import RunnerEngines, load
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.playlist import Kind, trial_of
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Evict,
    Extend,
    Finish,
    Resume,
    Retract,
    Schedule,
    Verify,
)
from paritybit.subjects.engines.shared.loading import Engine

BATCHES = "srt.managers.schedule_batch"

HOSTED = Schedule(
    (
        *(Admit(13, 5), Extend(0, 4), Extend(0, 8), Admit(5, 24), Admit(7, 24)),
        *(Decode((0, 1, 2)), Decode((0, 1, 2)), Decode((2, 0))),
        *(Retract(0), Decode((0, 1)), Resume(0), Decode((0, 1, 2))),
        *(Finish(1), Evict(0), Admit(4, 24), Decode((0, 1, 2)), Decode((2, 1))),
    )
)
"""A prompt in chunks beyond the window; requests decode, one comes again, one ends, one evicts."""

VERIFIED = Schedule(
    (
        *(Admit(6, 24), Admit(5, 24), Verify((0, 1), 1), Verify((0, 1), 3), Decode((0, 1))),
        *(Verify((1, 0), 0), Retract(0), Verify((0,), 2), Resume(0), Verify((0, 1), 1)),
        *(Finish(1), Admit(4, 24), Verify((0, 1), 2)),
    )
)
"""Drafts are verified with slots reserved for the next ones; a decode between gives those up."""

SCHEDULES = {"decode": HOSTED, "target_verify": VERIFIED}
"""What is played on a runner."""

Mutate = Callable[[Any, Any], Callable[..., Any]]
"""From a function of the engine and the subject's pool to what stands in the function's place."""


def evicts_too_early(evict: Any, pool: Any) -> Callable[..., Any]:
    """Take a request to be longer than it is as its window is evicted."""

    @wraps(evict)
    def evicted(batch: Any, req: Any, length: int, **named: Any) -> Any:
        return evict(batch, req, length + 2 + pool.sizes.page_size, **named)

    return evicted


def wrong_column(allocate: Any, pool: Any) -> Callable[..., Any]:
    """Write the slots of decodes one column too far."""

    @wraps(allocate)
    def allocated(batch: Any, **named: Any) -> Any:
        table, rows, columns = pool.requests.req_to_token, batch.req_pool_indices, batch.seq_lens
        columns = columns.clone()
        before = table[rows, columns].clone()
        found = allocate(batch, **named)
        table[rows, columns + 1] = table[rows, columns]
        table[rows, columns] = before
        return found

    return allocated


def positions_of_chunks(compute: Any, pool: Any) -> Callable[..., Any]:
    """Count the positions of a chunk from one too many, where it is not the first."""

    @wraps(compute)
    def computed(backend: Any, prefixes: Any, lengths: Any, total: Any) -> Any:
        positions, starts = compute(backend, prefixes, lengths, total)
        return positions + (prefixes > 0).repeat_interleave(lengths), starts

    return computed


def frees_one_too_few(release: Any, pool: Any) -> Callable[..., Any]:
    """Keep the last slot of a request that ends."""

    @wraps(release)
    def released(req: Any, cache: Any, **named: Any) -> Any:
        for name in ("kv_committed_len", "kv_allocated_len"):
            holder = req if hasattr(req, name) else req.kv
            setattr(holder, name, getattr(holder, name) - 1)
        return release(req, cache, **named)

    return released


def frees_twice(release: Any, pool: Any) -> Callable[..., Any]:
    """Free the first slots of a request that ends once more."""

    @wraps(release)
    def released(req: Any, cache: Any, **named: Any) -> Any:
        row = req.req_pool_idx if hasattr(req, "req_pool_idx") else req.kv.req_pool_idx
        slots = pool.held(row, 0, pool.sizes.page_size).clone()
        release(req, cache, **named)
        pool.allocator.full_attn_allocator.free(slots)

    return released


def swaps_decodes(merge: Any, pool: Any) -> Callable[..., Any]:
    """Merge batches so that two requests have one another's lengths."""

    @wraps(merge)
    def merged(batch: Any, other: Any) -> None:
        merge(batch, other)
        batch.seq_lens = batch.seq_lens.flip(0)

    return merged


def retracts_another(retract: Any, pool: Any) -> Callable[..., Any]:
    """Retract the request that the engine would rather keep."""

    @wraps(retract)
    def retracted(batch: Any, *arguments: Any, **named: Any) -> Any:
        requests = list(batch.reqs)
        swap_tokens(*requests)
        found = retract(batch, *arguments, **named)
        swap_tokens(*requests)
        return found

    return retracted


def swap_tokens(one: Any, other: Any) -> None:
    """Let two requests of the engine have one another's tokens."""
    for name in ("origin_input_ids", "output_ids"):
        held = getattr(one, name)
        setattr(one, name, getattr(other, name))
        setattr(other, name, held)


def forgets_the_reserve(release: Any, pool: Any) -> Callable[..., Any]:
    """Keep what is reserved for the drafts of a request that ends."""

    @wraps(release)
    def released(req: Any, cache: Any, **named: Any) -> Any:
        committed = req if hasattr(req, "kv_committed_len") else req.kv
        allocated = req if hasattr(req, "kv_allocated_len") else req.kv
        allocated.kv_allocated_len = committed.kv_committed_len
        return release(req, cache, **named)

    return released


def reserves_a_slot_twice(prepare: Any, pool: Any) -> Callable[..., Any]:
    """Give the second draft of a batch's first request the slot of its first."""

    @wraps(prepare)
    def prepared(batch: Any) -> Any:
        given = prepare(batch)
        if not batch.spec_algorithm.is_none():
            row = pool.requests.req_to_token[batch.req_pool_indices[0]]
            length = int(batch.seq_lens[0])
            row[length + 1] = row[length]
        return given

    return prepared


MUTATIONS: dict[str, tuple[str, str, Mutate]] = {
    "evicts_too_early": (f"{BATCHES}:ScheduleBatch", "_evict_swa", evicts_too_early),
    "wrong_column": (BATCHES, "alloc_for_decode", wrong_column),
    "positions_of_chunks": (
        "srt.model_executor.forward_batch_info",
        "compute_position",
        positions_of_chunks,
    ),
    "frees_one_too_few": ("srt.mem_cache.common", "release_kv_cache", frees_one_too_few),
    "frees_twice": ("srt.mem_cache.common", "release_kv_cache", frees_twice),
    "swaps_decodes": (f"{BATCHES}:ScheduleBatch", "merge_batch", swaps_decodes),
    "retracts_another": (f"{BATCHES}:ScheduleBatch", "retract_decode", retracts_another),
    "forgets_the_reserve": ("srt.mem_cache.common", "release_kv_cache", forgets_the_reserve),
    "reserves_a_slot_twice": (
        f"{BATCHES}:ScheduleBatch",
        "prepare_for_decode",
        reserves_a_slot_twice,
    ),
}
"""What of the engine's host code is got wrong: where it stands, its name, and how."""


@contextmanager
def mutated(engine: Engine, pool: Any, mutation: str) -> Iterator[None]:
    """Get a part of the engine's host code wrong for a while, unless `mutation` is none."""
    if mutation == "none":
        yield
        return
    place, name, mutate = MUTATIONS[mutation]
    owner = engine.part(place) if ":" in place else engine.module(place)
    own = getattr(owner, name)
    setattr(owner, name, mutate(own, pool))
    try:
        yield
    finally:
        setattr(owner, name, own)


def judged(lockstep: Lockstep, engine: Engine, mutation: str) -> dict[str, Any]:
    """Return what is said of the schedule with a part of the host code got wrong."""
    runner = lockstep.trial.runner
    leg = Leg(lockstep, Evidence(runner), OURS)
    pool: Any = lockstep.pair.subject
    with mutated(engine, pool.pool, mutation):
        leg.play(SCHEDULES[runner], STEP_PROPERTIES)
    found = [finding.to_json() for finding in leg.findings()]
    return {one["property"]: one["message"] for one in found}


def main(package: str, preset: str, runner: str, *mutations: str) -> None:
    """Play on a runner of a model with each mutation; print what is said."""
    warnings.simplefilter("ignore")
    engine = load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    trial = trial_of(runner, preset, Kind.REPLAYED, "cpu")
    lockstep = Lockstep(trial, engines=RunnerEngines(engine))
    found = {mutation: judged(lockstep, engine, mutation) for mutation in mutations}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
