"""Tensors of blocks that do not follow one another are checked as tensors of slots are."""

import pytest
import torch

from paritybit.watch.bits import Checksums, put, taken
from paritybit.watch.facts import Group, Layer
from paritybit.watch.ledger import Ledger, Names

BLOCK = 6


def both() -> tuple[Group, Group]:
    """Return a group of blocks between which others lie, and one of the same slots in a row."""
    flat = torch.randn(7, 4, BLOCK, 2, 8)
    blocks = flat[:, 0], flat[:, 3]
    rows = tuple(tensor.flatten(0, 1).clone() for tensor in blocks)
    layers = (Layer("0", blocks),), (Layer("0", rows),)
    return Group("g", layers[0], block=BLOCK), Group("g", layers[1])


@pytest.mark.parametrize(("first", "last"), [(0, 42), (0, 5), (7, 8), (4, 31), (12, 42)])
@pytest.mark.parametrize("chunk", [1, 200, 2**17])
def test_checksums_are_those_of_the_same_slots_in_a_row(first: int, last: int, chunk: int) -> None:
    blocks, rows = map(Checksums, both())
    blocks.chunk = chunk
    assert blocks.slots == rows.slots == 42
    assert blocks.bytes_per_slot == rows.bytes_per_slot
    assert torch.equal(blocks.all(first, last), rows.all(first, last))
    slots = torch.tensor([last - 1, first])
    assert torch.equal(blocks.of(slots), rows.of(slots))


def test_slots_are_taken_and_put_back() -> None:
    (blocks, rows), slots = both(), torch.tensor([41, 6, 13])
    for one, other in zip(blocks.layers[0].tensors, rows.layers[0].tensors, strict=True):
        held = taken(one, slots, BLOCK)
        assert torch.equal(held, taken(other, slots, None))
        put(one, slots, held + 1, BLOCK)
        put(other, slots, held + 1, None)
        assert torch.equal(one.flatten(0, 1), other)


def test_a_slot_that_is_loaded_holds_what_the_stored_one_did() -> None:
    ledger = Ledger(both()[0], Names())
    ledger.frame()
    slots = torch.tensor([3, 4])
    small = torch.tensor([1, 2], dtype=torch.int32)
    ledger.write(slots, torch.tensor([8, 10]), small, small, 5)
    entries = ledger.entries(slots)
    ledger.forget(slots)
    ledger.enter(torch.tensor([20]), entries)
    assert (int(ledger.chain[20]), int(ledger.forward[20]), int(ledger.chain[4])) == (8, 5, 0)
