"""Run kernels on numpy and by Triton's interpreter; print which had to be left to the second.

A script, to be run with TRITON_INTERPRET=1. The answer is JSON: for each kernel whether it was
refused, how often numpy ran it, and whether it wrote the same in both ways.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from paritybit.drive.stand_ins import kernels
from paritybit.engines import interpreter

LAUNCHES = 6
BLOCK = tl.constexpr(8)


@triton.jit  # type: ignore[untyped-decorator]
def doubled(value: Any) -> Any:
    """Return twice a value: a function that a kernel calls."""
    return value + value


@triton.jit  # type: ignore[untyped-decorator]
def listed(table: Any, rows: Any, counts: Any, ends: Any, out: Any, width: tl.constexpr) -> None:
    """Copy the first entries of each row of a table one after the other, in blocks."""
    place = tl.program_id(0)
    row = tl.load(rows + place)
    first = tl.load(ends + place)
    count = tl.load(counts + place).to(tl.int32)
    start = 0
    start += count // 3 - count % 2
    for block in range(tl.cdiv(count, BLOCK)):
        offset = tl.arange(0, BLOCK).to(tl.int64) + block * BLOCK
        held = tl.load(table + row * width + offset, mask=offset < count)
        tl.store(out + first + offset, doubled(held) - start, mask=offset < count)


@triton.jit  # type: ignore[untyped-decorator]
def counted(table: Any, rows: Any, counts: Any, ends: Any, out: Any, width: tl.constexpr) -> None:
    """Add atomically, which numpy leaves to Triton's interpreter."""
    tl.atomic_add(out + tl.program_id(0), 1)


def launch(kernel: Any, number: int) -> list[int]:
    """Launch a kernel over numbers of its own, and return what it wrote."""
    chance = torch.Generator().manual_seed(number)
    table = torch.randint(0, 99, (4, 32), generator=chance, dtype=torch.int32)
    rows = torch.randperm(4, generator=chance)[:3]
    counts = torch.randint(1, 30, (3,), generator=chance)
    ends = torch.tensor([0, *counts.tolist()]).cumsum(0)
    out = torch.full((100,), -1, dtype=torch.int64)
    kernel[(3,)](table, rows, counts, ends, out, 32)
    return [int(number) for number in out.tolist()]


def main() -> None:
    """Launch each kernel by Triton's interpreter, then all again with numpy at hand."""
    tried = {"listed": listed, "counted": counted}
    interpreter.accept_masks()
    right = {name: [launch(one, turn) for turn in range(LAUNCHES)] for name, one in tried.items()}
    made: dict[str, kernels.Kernel] = {}
    ran: dict[str, int] = dict.fromkeys(tried, 0)
    begin, run = kernels.Kernel.__init__, kernels.Kernel.launch

    def begun(kernel: Any, function: Callable[..., None], constants: Any) -> None:
        begin(kernel, function, constants)
        made[function.__name__] = kernel

    def counting(kernel: Any, *given: Any) -> None:
        ran[next(name for name, held in made.items() if held is kernel)] += 1
        run(kernel, *given)

    observed: Any = kernels.Kernel
    observed.__init__, observed.launch = begun, counting
    kernels.quicken_kernels()
    found = {name: [launch(one, turn) for turn in range(LAUNCHES)] for name, one in tried.items()}
    told = {
        name: {"refused": made[name].refused, "ran": ran[name], "same": found[name] == right[name]}
        for name in tried
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
