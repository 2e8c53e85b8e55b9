"""An engine's index kernels on numpy."""

from typing import Any

import pytest
import torch

from paritybit.drive.stand_ins.kernels import Kernel

WIDTH = 32


def doubled(value: Any) -> Any:
    """Return twice a value: a function that a kernel calls."""
    return value + value


def test_a_kernel_on_numpy_copies_rows_of_different_lengths_in_blocks() -> None:
    tl: Any = pytest.importorskip("triton.language")
    names = {"tl": tl, "doubled": doubled}
    code = """
def listed(table, rows, counts, ends, out, width):
    place = tl.program_id(0)
    row = tl.load(rows + place)
    first = tl.load(ends + place)
    count = tl.load(counts + place).to(tl.int32)
    start = count // 3 - count % 2
    for block in range(tl.cdiv(count, 8)):
        offset = tl.arange(0, 8).to(tl.int64) + block * 8
        held = tl.load(table + row * width + offset, mask=offset < count)
        tl.store(out + first + offset, doubled(held) - start, mask=offset < count)
    tl.store(out + first + count, tl.max(tl.where(held > 3, held * held, held), axis=0))

def counted(out):
    tl.atomic_add(out + tl.program_id(0), 1)
"""
    exec(code, names)
    chance = torch.Generator().manual_seed(0)
    table = torch.randint(0, 99, (4, WIDTH), generator=chance, dtype=torch.int32)
    rows, counts = torch.tensor([2, 0, 3]), torch.tensor([29, 8, 5])
    ends, out = torch.tensor([0, 30, 39]), torch.full((45,), -1)
    kernel = Kernel(names["listed"], ["width"])
    kernel.launch((3,), (table, rows, counts, ends, out, WIDTH), {})
    right: list[int] = []
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        held = table[row, :count]
        right += (2 * held - (count // 3 - count % 2)).tolist()
        last = held[(count - 1) // 8 * 8 :]
        right.append(int(torch.where(last > 3, last * last, last).max()))
    assert out.tolist() == right
    assert not kernel.refused
    assert Kernel(names["counted"], []).refused  # Triton's interpreter runs it.
