"""Copies and threads that take time on a CPU."""

import os
import sys
from collections.abc import Iterator
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive.sglang.host import transfer_kv_direct, transfer_kv_per_layer_pf_lf
from paritybit.drive.sglang.late import (
    BEGUN,
    DEFAULT,
    PAUSED,
    Clock,
    InStream,
    LateEvent,
    LateStream,
    late,
    paused,
    synchronize,
)
from paritybit.drive.sglang.stand_ins import ANYWHERE
from paritybit.drive.stand_ins.turns import TurnQueue, Turns

PLACES = torch.tensor([2, 0])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without anything late, and end all threads."""
    monkeypatch.setattr(LateStream, "all", [])
    monkeypatch.setattr(LateStream, "marks", {})
    monkeypatch.setattr(LateStream, "host", {})
    monkeypatch.setattr(Turns, "all", [])
    yield
    assert not Turns.all


def begun(stream: LateStream) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, LateEvent]:
    """Begin a copy in a stream. Returns its source, target and indices, and the event after it."""
    source, target, slots = torch.arange(4.0), torch.zeros(4), PLACES.clone()
    with InStream(stream):
        late(transfer_kv_direct)([source], [target], slots, slots, page_size=1)
        done = LateEvent()
        done.record()
    return source, target, slots, done


def test_a_copy_moves_what_is_there_when_it_is_made() -> None:
    stream = LateStream()
    source, target, slots, done = begun(stream)
    slots.zero_()  # The engine may change its indices, but not yet what they name.
    source += 10
    assert not done.query()
    assert target.tolist() == [0, 0, 0, 0]
    done.synchronize()
    assert done.query()
    assert target.tolist() == [10, 0, 12, 0]


def test_the_default_stream_copies_at_once_and_waits_when_it_is_told() -> None:
    *_, done = begun(DEFAULT)
    assert done.query()
    _, target, _, done = begun(LateStream())
    LateStream.current().wait_event(done)
    assert target.tolist() == [0, 0, 2, 0]


def test_an_event_leaves_later_copies_of_its_stream_alone() -> None:
    stream = LateStream()
    _, first, _, done = begun(stream)
    _, second, _, later = begun(stream)
    done.wait()
    assert [float(first[2]), float(second[2]), later.query()] == [2, 0, False]
    DEFAULT.wait_stream(stream)
    assert second[2] == 2


def test_a_stream_with_copies_waits_for_another_one_between_them() -> None:
    one, other = LateStream(), LateStream()
    _, first, _, _ = begun(one)
    _, second, _, done = begun(other)
    one.wait_event(done)
    assert second[2] == 0
    one.synchronize()
    assert [float(one[2]) for one in (first, second)] == [2, 2]


@pytest.mark.parametrize("recorded", ["before", "after", "through another"])
def test_a_stream_says_which_marks_it_has_waited_for(recorded: str) -> None:
    one, other, third, event = LateStream(), LateStream(), LateStream(), LateEvent()
    if recorded == "before":
        event.record(one)
    mark = one.mark()
    if recorded == "after":
        event.record(one)
    elif recorded == "through another":
        third.wait_stream(one)
        event.record(third)
    other.wait_event(event)
    waited = recorded != "before"
    assert (mark.before(one.known), mark.before(other.known)) == (True, waited)
    assert not mark.over
    event.synchronize()
    assert mark.over == waited
    synchronize()
    assert mark.over


def test_the_device_ends_all_copies_when_it_is_synchronized() -> None:
    _, target, _, done = begun(LateStream())
    synchronize()
    assert done.query()
    assert target.tolist() == [0, 0, 2, 0]


def test_indices_are_kept_however_a_copy_names_them() -> None:
    stream, held, slots = LateStream(), torch.ones(4, 1, 1), PLACES.clone()
    target, given = torch.zeros(4, 1), {"src_indices": slots, "dst_indices": slots}
    with InStream(stream):
        late(transfer_kv_per_layer_pf_lf)(
            held, held, 0, 4, dst_k=target, dst_v=target, item_size=4, **given
        )
    slots.fill_(1)
    stream.synchronize()
    assert target.flatten().tolist() == [1, 0, 1, 0]


def worked(seed: int) -> list[tuple[int, int]]:
    """Return the order in which two threads do their work."""
    done, queues = list[tuple[int, int]](), [TurnQueue(), TurnQueue()]
    stop = list[bool]()

    def work(mine: int) -> None:
        while not stop:
            try:
                done.append((mine, queues[mine].get(block=True, timeout=1)))
            except Empty:
                continue

    threads: list[Any] = [Turns(target=work, args=(mine,), daemon=True) for mine in range(2)]
    for thread in threads:
        thread.start()
    for item in range(8):
        for one in queues:
            one.put(item)
    assert not done  # Nothing runs before its turn.
    Clock.seed(seed)
    while len(done) < 16:
        Clock.tick()
    stop.append(True)
    for thread in threads:
        thread.join(timeout=1)
        assert not thread.is_alive()
    return done


def test_the_same_seed_gives_threads_the_same_turns() -> None:
    orders = [worked(seed) for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len({tuple(one) for one in orders}) > 1
    for order in orders:
        assert [item for mine, item in order if mine == 0] == [*range(8)]


@pytest.mark.parametrize(("part", "least", "most"), [(PAUSED, 4, 16), (BEGUN, 50, 80)])
def test_a_thread_waits_for_its_turn_before_some_copies(part: float, least: int, most: int) -> None:
    Clock.seed(1)
    done, turns = list[int](), 0
    copy = paused(done.append, part)
    thread = Turns(target=lambda: [copy(page) for page in range(128)], daemon=True)
    thread.start()
    while thread.is_alive():
        thread.turn()
        turns += 1
    assert done == [*range(128)]
    assert least < turns < most
    copy(128)  # Not a thread of turns.
    assert done[-1] == 128


def test_a_fork_has_the_threads_of_its_parent() -> None:
    queue, done = TurnQueue(), list[int]()
    stop = list[bool]()

    def work() -> None:
        while not stop:
            try:
                done.append(queue.get())
            except Empty:
                continue

    thread = Turns(target=work, daemon=True)
    thread.start()
    queue.put(7)
    if (child := os.fork()) == 0:
        for _ in range(3):
            thread.turn()
        os._exit(0 if done == [7] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.append(True)
    thread.join()


def test_time_passes_with_polls_alone() -> None:
    before = Clock.monotonic()
    assert 0 < Clock.monotonic() - before < 0.001
    Clock.tick()
    assert Clock.monotonic() - before > 0.05


def test_penalties_apply_in_one_order_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = list[str]()

    class Orchestrator:
        def __init__(self, *, penalizers: set[type]) -> None:
            applied.extend(one.__name__ for one in penalizers)

    module = SimpleNamespace(BatchedPenalizerOrchestrator=Orchestrator)
    monkeypatch.setitem(sys.modules, "sglang.srt.sampling.penaltylib.orchestrator", module)
    (standing,) = (one for one in ANYWHERE if "penalties" in one.what)
    standing.install()
    names = [f"Penalty{letter}" for letter in "ABCDEFGH"]
    Orchestrator(penalizers={type(name, (), {}) for name in reversed(names)})
    assert applied == names
