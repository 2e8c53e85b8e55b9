"""Tensors of blocks that do not follow one another are checked as tensors of slots are."""

import pytest
import torch

from paritybit.watch.bits import Checksums
from paritybit.watch.facts import Group, Layer

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
    groups = both()
    blocks, rows = map(Checksums, groups)
    blocks.chunk = chunk
    assert blocks.slots == rows.slots == 42
    assert blocks.bytes_per_slot == rows.bytes_per_slot
    assert torch.equal(blocks.all(first, last), rows.all(first, last))
    slots = torch.tensor([last - 1, first])
    assert torch.equal(blocks.of(slots), rows.of(slots))
