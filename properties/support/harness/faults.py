"""Faults planted outside the subject's catalogue: functions, and which property sees each alone.

Each is one wrong byte, path or message, in one or in both runs; the schedule of `planting` is
clean without it. A fault planted in both runs alike must not be seen by parity.
"""

from collections.abc import Callable

import pytest
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.lockstep.scheduler import LockstepScheduler
from paritybit.reference.allocator import PageAllocation, PageAllocator
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind, Role
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Output
from paritybit.subjects.buffers import StaticInputs
from paritybit.subjects.protocol import ForwardResult, Overrides, ReplayResult
from paritybit.subjects.runners import RUNNERS
from torch import Tensor

from properties.support.harness.planting import (
    Plant,
    captured,
    on_eager,
    on_replay,
    runners_named,
)
from properties.support.harness.tensors import first_of, flip


def free_slot(player: SchedulePlayer) -> int:
    """Return a full slot that nobody owns."""
    return player.pair.graph_scheduler.allocator.free_full[0]


def wrong_kv(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one element in a slot that the step may write."""
    role = RUNNERS[runner].mode.written
    assert role is not None
    arena = player.pair.graph_pools[role].arena[Kind.FULL]

    def change(batch: ForwardBatch | None, replay: ReplayResult) -> None:
        if batch is not None:
            flip(arena, 0, 1, batch.spans[0].full_slots[-1], 0, 0)

    on_replay(player, runner, monkeypatch, change, fresh_engine=True)


def reads_free_bytes(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live output that takes up the bytes of a slot nobody owns: too few to show, but for noise."""
    pools = player.pair.graph_pools

    def change(batch: ForwardBatch | None, replay: ReplayResult) -> None:
        if batch is not None:
            slot = free_slot(player)
            held = [pools[role].arena[Kind.FULL][:, :, slot] for role in Role]
            read = sum(values.nan_to_num(0, 0, 0).sum() for values in held)
            first_of(replay.live_output)[-1] += 1e-30 * read

    on_replay(player, runner, monkeypatch, change, fresh_engine=True)


def refill(inputs: StaticInputs, name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let padding fill a static input with another value."""
    buffer, fill = inputs.buffers[name], inputs.populate

    def populate(live: dict[str, Tensor], **padded: bool) -> None:
        fill(live, **padded)
        count = live[name].shape[0] if name in live else 0
        if any(padded.values()):
            buffer[count:] = value

    monkeypatch.setitem(vars(inputs), "populate", populate)


def row_of_a_retracted_request_freed(
    player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of tokens of a request that comes back is free for the next one, in both runs."""
    leave = LockstepScheduler._leave

    def freeing(self: LockstepScheduler, pick: int, *, finished: bool) -> None:
        leave(self, pick, finished=finished)
        if not finished and self.retracted:
            self.free_token_rows.append(self.retracted[-1].token_row)

    monkeypatch.setattr(LockstepScheduler, "_leave", freeing)


def eager_fallback(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that silently runs eagerly, with all the right bits, although it was captured."""
    pair, (subject, _) = player.pair, captured(player)
    target, draft = pair.models.values()
    decoder = EagerDecoder(pair.trial.ops(), target, draft, pair.graph_pools)
    forward = subject.forward

    def fallback(batch: ForwardBatch | None, idle: Mode, *overrides: Overrides) -> ForwardResult:
        if batch is not None and batch.mode is RUNNERS[runner].mode:
            return ForwardResult(decoder.forward(batch), None)
        return forward(batch, idle, *overrides)

    monkeypatch.setitem(vars(subject), "forward", fallback)


def padding_filled_with(name: str, value: int) -> Plant:
    """Return a fault of every engine: padding fills a static input of a runner with a value."""

    def plant(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for under_test in runners_named(player, runner):
            refill(under_test.inputs, name, value, monkeypatch)

    return plant


def freed_twice(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last page is given back twice when a request leaves, in both runs."""
    for side in (player.pair.eager_scheduler, player.pair.graph_scheduler):
        monkeypatch.setattr(side.allocator, "free", freeing_twice(side.allocator))


def freeing_twice(allocator: PageAllocator) -> Callable[[PageAllocation], None]:
    """Return an allocator's `free` that gives the last page back twice."""
    free = allocator.free

    def twice(allocation: PageAllocation) -> None:
        free(allocation)
        allocator.free_full.append(allocator.free_full[-1])

    return twice


def still_mapped(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is evicted stays mapped in the graph run."""
    allocator = player.pair.graph_scheduler.allocator
    evict, mapping = allocator.evict, player.pair.graph_pools.tables.full_to_swa_index_mapping

    def mapped(allocation: PageAllocation, tokens: int) -> None:
        before = mapping.clone()
        evict(allocation, tokens)
        mapping.copy_(before)

    monkeypatch.setattr(allocator, "evict", mapped)


def drifting(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the eager forwards of a decode, the first differs from the others."""
    begun = set[int]()

    def change(batch: ForwardBatch, output: Output) -> None:
        if batch.mode is Mode.DECODE and player.pair.forwards not in begun:
            begun.add(player.pair.forwards)
            flip(first_of(output), 0, 0)

    on_eager(player, monkeypatch, change)


def other_bits_alone(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request run eagerly alone that has other bits than in company."""

    def change(batch: ForwardBatch, output: Output) -> None:
        if (
            batch.mode is RUNNERS[runner].mode
            and batch.live_requests == 1
            and batch.live_tokens < 9
        ):
            flip(first_of(output), 0, 0)

    on_eager(player, monkeypatch, change)


def wrong_token(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the graph run that no later step reads is another one."""
    side = player.pair.graph_scheduler
    commit = side.commit

    def changed(batch: ForwardBatch, output: Output) -> list[int]:
        if batch.mode is Mode.DECODE and batch.live_requests == 2:
            side.tokens[side.running[0].token_row, 0] += 1
        return commit(batch, output)

    monkeypatch.setattr(side, "commit", changed)


def failing_replay(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that raises an error."""

    def change(batch: ForwardBatch | None, replay: ReplayResult) -> None:
        raise RuntimeError("no kernel image")

    on_replay(player, runner, monkeypatch, change)


def padded_element(player: SchedulePlayer, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one element of a padded row, which the fresh engine has right."""

    def change(batch: ForwardBatch | None, replay: ReplayResult) -> None:
        if replay.live_rows < len(first_of(replay.output)):
            flip(first_of(replay.output), -1, 0)

    on_replay(player, runner, monkeypatch, change)


FULL_GRAPHS = ("cpu_graph", "target_verify", "eagle_draft")

FAULTS: list[tuple[str, tuple[str, ...], Plant]] = [
    ("no_crash", ("decode",), failing_replay),
    ("kv_parity", (*FULL_GRAPHS, "piecewise"), wrong_kv),
    ("hermetic_replay", FULL_GRAPHS, padded_element),
    ("padding_noninterference", (*FULL_GRAPHS, "piecewise"), reads_free_bytes),
    ("captured_path", (*FULL_GRAPHS, "piecewise"), eager_fallback),
    ("determinism", ("cpu_graph",), drifting),
    ("batch_invariance", ("decode",), other_bits_alone),
    ("next_tokens", ("decode",), wrong_token),
]
"""Faults that exactly one property detects, and the runners that they are planted in."""
