"""The wire between an engine for prefill and one for decode."""

from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from random import Random
from threading import Thread
from typing import Any

import pytest
import torch

from paritybit.drive.engine import PlayedError
from paritybit.drive.sglang import apart
from paritybit.drive.sglang.apart import Socket, TransferEngine, WaitingQueue, Wire
from paritybit.drive.sglang.late import Clock
from paritybit.drive.stand_ins.turns import Turns

PAGES = [3, 0, 5, 2]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without messages, and end all threads."""
    monkeypatch.setattr(Turns, "all", [])
    for name in ("out", "late", "requests"):
        monkeypatch.setattr(Wire, name, [] if name == "out" else deque())
    yield
    assert not Turns.all


def transfer(seed: int) -> tuple[list[Any], int]:
    """Write pages in a thread with turns. Returns what is sent in each turn, and the result."""
    Clock.chance = Random(seed)
    source, target = torch.arange(24).view(6, 4), torch.zeros(6, 4, dtype=torch.int64)
    size, results, sent = source[0].nbytes, list[int](), []
    here, there = ([one.data_ptr() + size * page for page in PAGES] for one in (source, target))

    def write() -> None:
        lengths = [size] * len(PAGES)
        results.append(TransferEngine().batch_transfer_sync_write("peer", here, there, lengths))

    thread = Turns(target=write)
    thread.start()
    while not thread.ended:
        thread.turn()
        sent.append([(address - target.data_ptr()) // size for _, (address, _) in Wire.out])
        for port, content in Wire.out:
            Wire.arrives(port, content)
        Wire.out.clear()
    done = sorted(page for turn in sent for page in turn)
    assert torch.equal(target[done], source[done])
    assert not target[[page for page in range(6) if page not in done]].any()
    return sent, results[0]


def test_a_transfer_writes_each_page_once_in_an_order_of_the_seed() -> None:
    made = [transfer(seed) for seed in range(60)]
    whole = [[page for turn in sent for page in turn] for sent, code in made if code == 0]
    assert all(sorted(pages) == sorted(PAGES) for pages in whole)
    assert len({tuple(pages) for pages in whole}) > 5
    assert max(len(sent) for sent, _ in made) > 2
    assert transfer(3) == made[3]


def test_a_transfer_may_fail_before_its_last_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "FAILING", 1)
    made = [transfer(seed) for seed in range(20)]
    assert {code for _, code in made} == {-1}
    assert {sum(map(len, sent)) for sent, _ in made} == {0, 1, 2, 3}


def test_messages_come_in_order_and_requests_to_both_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clock, "chance", Random(0))
    here, there = Pipe()
    monkeypatch.setattr(Wire, "pipe", here)
    monkeypatch.setattr(Wire, "bound", Socket())
    got = list[Any]()

    def other() -> None:
        """Play the other engine, which sends a message for each request."""
        while (given := there.recv())[0] is not None:
            got.extend(given[0])
            there.send(([(1, [bytes([len(got)])])], True))

    thread = Thread(target=other)
    thread.start()
    sent, arrived = list(range(40)), list[Any]()
    for one in sent:
        arrived += Wire.exchange([one], True)
    while not Wire.rests():
        arrived += Wire.exchange([], True)
    assert Wire.exchange(None, True) == []
    thread.join()
    assert arrived == got == sent
    messages = [Wire.bound.recv_multipart()[0][0] for _ in range(len(Wire.bound.inbox))]
    assert messages == sorted(messages)
    assert messages[-1] == 40


def test_the_engine_for_prefill_ends_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()
    monkeypatch.setattr(Wire, "pipe", there)
    monkeypatch.setattr(Wire, "port", 2)
    here.send((None, []))
    with pytest.raises(PlayedError):
        Wire.exchange([], True)


def test_a_queue_gives_its_items_in_order_by_turns() -> None:
    queue, found = WaitingQueue(), list[int]()
    thread = Turns(target=lambda: found.extend([queue.get() for _ in range(3)]))
    thread.start()
    for number in range(3):
        thread.turn()
        thread.turn()
        assert found == []
        queue.put(number)
    while not thread.ended:
        thread.turn()
    assert found == [0, 1, 2]
