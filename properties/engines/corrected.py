"""Run kernels by Triton's corrected interpreter. A script, to be run with TRITON_INTERPRET=1.

The answer is JSON: the result of arithmetic with bfloat16, and what a loop over `tl.range` wrote.
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


def main() -> None:
    """Print what the corrected interpreter gives."""
    interpreter.quicken()
    sys.stdout.write(json.dumps({"small": of_small_floats(), "loop": of_loops()}) + "\n")


if __name__ == "__main__":
    main()
