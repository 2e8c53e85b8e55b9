"""The copy of a group's bytes finds the slots that changed, and the ledger keeps its checksums."""

import pytest
import torch

from paritybit.watch import bits
from paritybit.watch.bits import as_integers
from paritybit.watch.facts import Group, Layer
from paritybit.watch.ledger import Ledger, Names

SLOTS, BLOCK = 12, 3

IN_ROWS, IN_BLOCKS = torch.zeros(SLOTS, 2, 4), torch.zeros(SLOTS // BLOCK, 2, BLOCK, 2, 4)

LAYOUTS: dict[str, tuple[tuple[torch.Tensor, ...], int | None]] = {
    "several dtypes and widths": (
        (
            torch.zeros(SLOTS, 2, 4),
            torch.zeros(SLOTS, 5, dtype=torch.bfloat16),
            torch.zeros(SLOTS, dtype=torch.float64),
            torch.zeros(SLOTS, 3, dtype=torch.uint8).view(torch.float8_e4m3fn),
        ),
        None,
    ),
    "other bytes between slots": ((IN_ROWS[:, 0], IN_ROWS[:, 1]), None),
    "an odd address": ((torch.zeros(SLOTS * 4 + 1)[1:].view(SLOTS, 4),), None),
    "slots that are not contiguous": ((torch.zeros(4, SLOTS, 3).transpose(0, 1),), None),
    "more slots than another": ((torch.zeros(SLOTS + 5, 4), torch.zeros(SLOTS, 4)), None),
    "blocks": (
        (
            torch.zeros(SLOTS // BLOCK, BLOCK, 4),
            *(IN_BLOCKS[:, 0], IN_BLOCKS[:, 1]),
            torch.zeros(SLOTS // BLOCK, BLOCK, 3, dtype=torch.uint8),
        ),
        BLOCK,
    ),
}


@pytest.fixture(params=LAYOUTS)
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """The ledger of a group with a layer per tensor."""
    tensors, block = LAYOUTS[request.param]
    layers = tuple(Layer(str(number), (tensor,)) for number, tensor in enumerate(tensors))
    return Ledger(Group("group", layers, block=block), Names())


def framed(ledger: Ledger) -> torch.Tensor:
    """Scan the slots. Returns which slots changed, bool [slots]."""
    changed = ledger.scan()
    return torch.zeros(ledger.slots, dtype=torch.bool) if changed is None else changed


def checksums(ledger: Ledger) -> torch.Tensor:
    """Return the checksums of all slots."""
    return ledger.checksums.of(torch.arange(ledger.slots))


def test_a_frame_finds_a_change_of_any_bit_once(ledger: Ledger) -> None:
    assert ledger.snapshot is not None
    assert not bool(framed(ledger).any())
    for tensor in ledger.checksums.tensors:
        for slot in (0, 4, SLOTS - 1):
            block = ledger.group.block
            place = (slot,) if block is None else divmod(slot, block)
            mine = as_integers(tensor)[place]
            last = (-1,) * mine.dim()
            mine[last] ^= -128 if mine.dtype != torch.uint8 else 128
            assert framed(ledger).nonzero().flatten().tolist() == [slot]
            assert torch.equal(ledger.scanned, checksums(ledger))
            assert not bool(framed(ledger).any())


def test_a_large_group_has_no_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "LARGEST_COPY", SLOTS * 16)
    fits, larger = torch.zeros(SLOTS, 4), torch.zeros(SLOTS, 5)
    for tensor, there in ((fits, True), (larger, False)):
        ledger = Ledger(Group("group", (Layer("0", (tensor,)),)), Names())
        assert (ledger.snapshot is not None) == there
        ledger.scan()
        tensor[3, 1] = 1
        assert framed(ledger).nonzero().flatten().tolist() == [3]
        assert torch.equal(ledger.scanned, checksums(ledger))
        tensor[[5, 6]] = tensor[3].clone()
        ledger.copy(torch.tensor([3]), torch.tensor([5]))
        assert framed(ledger).nonzero().flatten().tolist() == [6]
