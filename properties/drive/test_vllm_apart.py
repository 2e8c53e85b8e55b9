"""Two engines of vLLM with a wire between them, and LMCache without a GPU."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paritybit.drive.vllm import apart, cached
from paritybit.drive.vllm.host import LATEST

BLOCKS, TOKENS, HEADS, WIDTH = 6, 4, 2, 8
"""`WIDTH` is that of a head's K and V together."""


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_transfer_reads_the_other_memory_late_unless_it_fails(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Descriptors are rows of an address, a size, a device, a stride and a count."""
    asked = list[tuple[str, Any]]()

    def ask(what: str, given: Any) -> Any:
        asked.append((what, given))
        return [ctypes.string_at(*one) for one in given] if what == apart.READ else None

    monkeypatch.setattr(apart.Wire, "ask", ask)
    monkeypatch.setattr(apart.Wire, "failing", bool(share))
    monkeypatch.setattr(apart, "FAILING", share)
    mine, theirs = np.zeros(8, dtype=np.uint8), np.arange(8, dtype=np.uint8)
    agent = apart.Agent("decode")
    rows = [np.array([[one.ctypes.data, 2, 0, 2, 4]], dtype=np.uint64) for one in (mine, theirs)]
    here, there = (agent.prep_xfer_dlist("", one, "DRAM") for one in rows)
    number = agent.make_prepped_xfer("READ", here, [3, 0], there, [1, 2], b"done")
    assert agent.transfer(number) == "PROC"
    states = list[str]()
    while not states or states[-1] == "PROC":
        assert not mine.any()
        states.append(agent.check_xfer_state(number))
    assert len(states) <= LATEST
    assert states[-1] == ("ERR" if share else "DONE")
    assert mine.tolist() == ([0] * 8 if share else [4, 5, 0, 0, 0, 0, 2, 3])
    assert asked[-1:] == ([] if share else [(apart.NOTIFY, b"done")])


@pytest.mark.parametrize("layout", [cached.HEADS_FIRST[0], cached.TOKENS_FIRST[0]])
@pytest.mark.parametrize("given", ["all of a head", "twice of it"])
def test_chunks_come_back_as_the_kernel_of_lmcache_copies_them(layout: str, given: str) -> None:
    """If the package gives it memory for K alone, or twice the size of a head, they do not."""
    cache = torch.randn(2, BLOCKS, TOKENS, HEADS * WIDTH)
    before, right = cache.clone(), given == "all of a head"
    if right:
        held, size = torch.zeros(1, 2, 5, HEADS * WIDTH), WIDTH // 2
    else:
        held, size = torch.zeros(2, 2, 5, HEADS * WIDTH // 2), WIDTH
    pointers = torch.tensor([layer.data_ptr() for layer in cache])
    how = {"block_size": TOKENS, "head_size": size, "block_stride_elems": TOKENS * HEADS * WIDTH}
    names = SimpleNamespace(name=layout), {"D2H": [4, 5, 6, 7, -1], "H2D": [12, 13, 14, 15, -1]}
    for way, slots in names[1].items():
        ends = SimpleNamespace(name=way), names[0]
        cached.transfer(held, pointers, torch.tensor(slots), None, 24, *ends, **how)
    assert torch.equal(cache[:, :3], before[:, :3])
    assert torch.equal(cache[:, 3], before[:, 1]) == right


def test_tokens_before_a_chunk_are_not_loaded_again() -> None:
    cache, held = torch.zeros(1, 2, TOKENS, WIDTH), torch.ones(1, 1, 4, WIDTH)
    ends = SimpleNamespace(name="H2D"), SimpleNamespace(name=cached.TOKENS_FIRST[0])
    given = held, torch.tensor([cache.data_ptr()]), torch.arange(4), None, 8
    cached.transfer(*given, *ends, TOKENS, WIDTH // 2, skip_prefix_n_tokens=3)
    assert cache[0, 0].any(1).tolist() == [False, False, False, True]


def test_chunks_are_written_some_polls_late_and_in_order() -> None:
    written, writes = list[int](), cached.Writes()

    async def write(number: int) -> None:
        written.append(number)

    for number in range(3):
        writes.submit(write(number), None)
    assert not written
    for _ in range(3 * (LATEST + 1)):
        writes.poll()
    assert written == [0, 1, 2]


def test_work_that_fails_has_its_error() -> None:
    assert apart.Now().submit(lambda: 3).result() == 3
    assert isinstance(apart.Now().submit(lambda: int("x")).exception(), ValueError)
