"""Extra runs of a step leave no trace in either run, and noise reaches whatever nobody owns."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.noise import Noise
from paritybit.harness.lockstep.pair import ExtraRun, Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.lockstep.scheduler import LockstepScheduler
from paritybit.reference.allocator import PageAllocation
from paritybit.reference.batch import DraftState, ForwardBatch, Mode
from paritybit.reference.pool import KVPools
from paritybit.subjects.engine import ReplicaEngine
from paritybit.subjects.protocol import ForwardResult
from torch import Tensor

from properties.support.harness.planting import ONE_PER_ENGINE, SCHEDULE, captured, shared

EXTRA_RUNS = {name: rule.extra_run for name, rule in PROPERTIES.items() if rule.extra_run}


def bytes_of_pools(pools: KVPools) -> dict[str, Tensor]:
    """Return a copy of all bytes of a side: its KV and both of its tables."""
    found = {
        "storage": pools.storage,
        "req_to_token": pools.tables.req_to_token,
        "full_to_swa_index_mapping": pools.tables.full_to_swa_index_mapping,
    }
    return {name: values.clone() for name, values in found.items()}


def state_of(side: LockstepScheduler) -> dict[str, object]:
    """Return a copy of all that a scheduler keeps beside its pools, tokens included."""
    allocator = side.allocator
    assert isinstance(side.hidden_states, Tensor)
    free = (
        list(allocator.free_full),
        list(allocator.free_swa),
        list(allocator.free_rows),
        list(allocator.free_states),
    )
    return {
        "tokens": side.tokens.tolist(),
        "hidden_states": bits(side.hidden_states).tolist(),
        "requests": [
            {
                name: vars(held).copy() if isinstance(held, PageAllocation | DraftState) else held
                for name, held in vars(request).items()
            }
            for request in (*side.running, *side.retracted)
        ],
        "free": (*free, list(side.free_token_rows)),
        "counts": side.admitted,
    }


def states_of(pair: Pair) -> dict[str, str]:
    """Return both schedulers' states, in words that can be compared."""
    return {
        f"{name}: {part}": repr(held)
        for name, side in (("eager", pair.eager_scheduler), ("graph", pair.graph_scheduler))
        for part, held in state_of(side).items()
    }


def buffers_of(engine: ReplicaEngine) -> dict[str, Tensor]:
    """Return all static buffers of an engine, by runner and name."""
    return {
        f"{runner.name}: {name}": buffer
        for runner in engine.runners.values()
        for name, buffer in runner.static_buffers().items()
    }


def bytes_of(pair: Pair, engine: ReplicaEngine) -> dict[str, Tensor]:
    """Return a copy of all bytes of both runs and of one engine's static buffers."""
    return {
        **{f"eager: {name}": x for name, x in bytes_of_pools(pair.eager_pools).items()},
        **{f"graph: {name}": x for name, x in bytes_of_pools(pair.graph_pools).items()},
        **{name: buffer.clone() for name, buffer in buffers_of(engine).items()},
    }


def changed_since(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Return the names of what no longer has the same bits."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(bits(before[name]), bits(after[name]))}


def traces(player: SchedulePlayer, run: ExtraRun, pair: Pair, planned: PlannedStep) -> set[str]:
    """Return what an extra run left changed: in the runs, the subject or its Python state.

    Of the fresh engine, what is still changed once it is given its just-captured bytes back.
    """
    subject, fresh = captured(player)
    fresh.reset()
    before = bytes_of(pair, subject), bytes_of(pair, fresh)
    state, schedulers = subject.state(), states_of(pair)
    run(pair, planned)
    found = changed_since(before[0], bytes_of(pair, subject))
    found |= {name for name, held in states_of(pair).items() if held != schedulers[name]}
    found |= {"the subject's state"} if subject.state() != state else set()
    fresh.reset()
    return found | changed_since(before[1], bytes_of(pair, fresh))


def play_all_steps(player: SchedulePlayer, runs: dict[str, ExtraRun]) -> None:
    """Play the schedule step by step with some extra runs."""
    with torch.inference_mode():
        player.pair.reset(SCHEDULE.seed)
        for place, step in enumerate(SCHEDULE.steps):
            player.pair.step(step, place, runs)


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_an_extra_run_leaves_no_byte_behind_in_any_mode(engine: str, device: str) -> None:
    """Neither noise, nor the fresh engine, nor a further eager run."""
    player = shared(device, engine)
    left: dict[tuple[str, Mode], set[str]] = {}

    def watching(name: str, run: ExtraRun) -> ExtraRun:
        def watched(pair: Pair, planned: PlannedStep) -> None:
            key = name, planned.mode
            left[key] = left.get(key, set()) | traces(player, run, pair, planned)

        return watched

    play_all_steps(player, {name: watching(name, run) for name, run in EXTRA_RUNS.items()})
    modes = captured(player)[0].runners
    assert left == {(name, mode): set() for name in EXTRA_RUNS for mode in modes}


LENGTHS = (
    *("num_token_non_padded", "global_num_tokens"),
    *("key_begin", "key_end", "window_key_begin", "window_key_end"),
)
"""Static buffers of places in lists and the like, for which no noise is valid."""


def noisy_bytes(
    player: SchedulePlayer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Pair, PlannedStep], None]:
    """Return an extra run among noise that checks what the noise spared, and notes the rest.

    What it has reached is put into the attribute `reached` of the function.
    """
    _, fresh = captured(player)
    forward = fresh.forward
    before: dict[str, Tensor] = {}
    reached: set[str] = set()

    def spied(batch: ForwardBatch | None, *given: Any) -> ForwardResult:
        if before:
            assert_spares_the_batch(player, batch, before)
            reached.update(changed_since(before, bytes_of(player.pair, fresh)))
        return forward(batch, *given)

    def run(pair: Pair, planned: PlannedStep) -> None:
        fresh.reset()
        before.update(bytes_of(pair, fresh))
        EXTRA_RUNS["padding_noninterference"](pair, planned)
        before.clear()

    monkeypatch.setitem(vars(fresh), "forward", spied)
    run.reached = reached  # type: ignore[attr-defined]
    return run


def assert_spares_the_batch(
    player: SchedulePlayer, batch: ForwardBatch | None, before: dict[str, Tensor]
) -> None:
    """Check that noise filled all KV but the batch's own, and kept the cells in use."""
    pair = player.pair
    storage = pair.graph_pools.storage
    owned = Noise(pair.graph_pools, 0).owned(pair.graph_scheduler, batch)
    changed = bits(storage) != bits(before["graph: storage"])
    assert not (changed & owned).any()
    for _, _, arena in pair.layout.arenas_of(changed | owned):
        assert arena.float().mean() > 0.99
    for request in pair.graph_scheduler.running:
        assert request.allocation is not None
        row, pages = request.allocation.row, request.allocation.full_pages
        for name, place in (
            ("req_to_token", (row, slice(len(pages)))),
            ("full_to_swa_index_mapping", pages),
        ):
            table = getattr(pair.graph_pools.tables, name)
            assert torch.equal(table[place], before[f"graph: {name}"][place])


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_noise_reaches_whatever_nobody_owns(
    engine: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pools, the cells of both tables that are free, static buffers; no byte of the batch."""
    player = shared(device, engine)
    run = noisy_bytes(player, monkeypatch)
    play_all_steps(player, {"padding_noninterference": run})
    tables = {"graph: storage", "graph: req_to_token", "graph: full_to_swa_index_mapping"}
    buffers = buffers_of(captured(player)[1])
    filled = {name for name in buffers if name.split(": ")[1] not in LENGTHS}
    assert run.reached == tables | filled  # type: ignore[attr-defined]
