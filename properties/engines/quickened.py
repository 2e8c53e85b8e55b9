"""Run kernels by Triton's interpreter as it is, then quickened; print what both gave.

A script, to be run with TRITON_INTERPRET=1. The answer is JSON: for each kernel the bits of its
output in both, how often the language was patched in the second ones, what became of arithmetic
with bfloat16, and what a loop over `tl.range` wrote.
"""

import json
import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as tritons

from paritybit.engines import interpreter

WIDTH = 8


@triton.jit  # type: ignore[untyped-decorator]
def scaled(values: Any, factor: Any) -> Any:
    """Return values times a factor: a function that a kernel calls."""
    return values * factor


@triton.jit  # type: ignore[untyped-decorator]
def moved(out: Any, rows: Any, table: Any, count: Any, width: tl.constexpr) -> None:
    """Copy a row of a table of pointers' worth of numbers, what is behind `count` negated."""
    place = tl.arange(0, width)
    live = place < count
    row = tl.load(rows + tl.program_id(0)).to(tl.int64)
    values = tl.load(table + row * width + place, mask=live, other=-1.5)
    both = tl.where(live, scaled(values, 3.0), -values)
    total = tl.sum(both, axis=0)
    tl.store(out + tl.program_id(0) * width + place, both + total)


@triton.jit  # type: ignore[untyped-decorator]
def wrapped(out: Any, values: Any, width: tl.constexpr) -> None:
    """Add and multiply numbers of 32 bits beyond what they hold, and of 8 and 64 beside them."""
    place = tl.arange(0, width)
    held = tl.load(values + place)
    narrow = held.to(tl.int8).to(tl.int32)
    wide = held.to(tl.int64) * 3
    tl.store(out + place, held + held)
    tl.store(out + width + place, held * held + narrow)
    tl.store(out + 2 * width + place, (wide >> 1).to(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def spread(out: Any, values: Any, width: tl.constexpr) -> None:
    """Write an outer product, of blocks of two shapes."""
    place = tl.arange(0, width)
    held = tl.load(values + place)
    square = held[:, None] * held[None, :]
    tl.store(out + place[:, None] * width + place[None, :], square)


@triton.jit  # type: ignore[untyped-decorator]
def small(out: Any, values: Any, how: tl.constexpr, width: tl.constexpr) -> None:
    """Compute with bfloat16, or only move and convert it."""
    place = tl.arange(0, width)
    square = tl.load(values + place[:, None] * width + place[None, :])
    if how == "moves":
        square = tl.where(square.to(tl.float32) > 0, square, 0.0)
    elif how == "adds":
        square = square + square
    elif how == "multiplies":
        square = tl.dot(square, square).to(tl.bfloat16)
    else:
        square = tl.reduce(square, 0, scaled)[None, :] + tl.zeros((width, width), tl.float32)
    tl.store(out + place[:, None] * width + place[None, :], square)


@triton.jit  # type: ignore[untyped-decorator]
def counted(out: Any, count: Any) -> None:
    """Write the square of each third number below `count`, of which the loop makes 64 bits."""
    for number in tl.range(tl.program_id(0), count, 3):
        wide = number.to(tl.int64)
        tl.store(out + number, wide * wide)


def of_loops() -> list[int]:
    """Return what a kernel writes that converts the number of each turn of its loop."""
    out = torch.zeros(WIDTH, dtype=torch.int64)
    counted[(1,)](out, WIDTH)
    return out.tolist()


def of_small_floats() -> dict[str, bool | str]:
    """Return for each kernel of bfloat16 whether it gives what torch gives, or its error."""
    values = torch.linspace(-2, 2, 16 * 16).view(16, 16).bfloat16()
    right = {
        "moves": values.clamp(min=0), "adds": values + values,
        "multiplies": values @ values, "reduces": values.cumprod(0)[-1].expand(16, 16),
    }  # fmt: skip
    found = dict[str, bool | str]()
    for how, expected in right.items():
        out = torch.zeros_like(values)
        try:
            small[(1,)](out, values, how, 16)
            found[how] = torch.equal(out, expected)
        except tritons.InterpreterError as error:
            found[how] = repr(error.__cause__)
    return found


def run() -> dict[str, list[int]]:
    """Return the bits that every kernel gives."""
    table = torch.linspace(-2, 2, 3 * WIDTH)
    rows = torch.tensor([2, 0], dtype=torch.int32)
    numbers = (torch.arange(WIDTH, dtype=torch.int32) - 3) * 700_000_011
    found = {
        "moved": torch.zeros(2 * WIDTH),
        "wrapped": torch.zeros(3 * WIDTH, dtype=torch.int32),
        "spread": torch.zeros(WIDTH * WIDTH),
    }
    moved[(2,)](found["moved"], rows, table, 5, WIDTH)
    wrapped[(1,)](found["wrapped"], numbers, WIDTH)
    spread[(1,)](found["spread"], table[:WIDTH], WIDTH)
    return {name: out.view(torch.int32).tolist() for name, out in found.items()}


def main() -> None:
    """Print what the interpreter gives as it is, and twice quickened."""
    interpreter.accept_masks()
    before = run()
    patches, patch = list[str](), tritons._patch_lang

    def noted(kernel: Any) -> Any:
        patches.append(kernel.__name__)
        return patch(kernel)

    vars(tritons)["_patch_lang"] = noted
    interpreter.quicken()
    found = {"before": before, "after": [run(), run()], "patched": patches}
    sys.stdout.write(json.dumps({**found, "small": of_small_floats(), "loop": of_loops()}) + "\n")


if __name__ == "__main__":
    main()
