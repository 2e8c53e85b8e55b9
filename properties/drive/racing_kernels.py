"""Launch small kernels with the check for races on; print what it found.

A script, to be run with TRITON_INTERPRET=1. The output is JSON: the journal's counts, and for each
kernel the finding's cause and text, or null.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from paritybit.drive.stand_ins import races
from paritybit.drive.stand_ins.kernels import quicken_kernels
from paritybit.engines.interpreter import quicken
from paritybit.watch import journal
from paritybit.watch.checks.kernel_race import CHECK
from paritybit.watch.settings import VARIABLE, Settings
from properties.support.watching import lines_in

FOLDER = ""

if __name__ == "__main__":
    FOLDER = tempfile.mkdtemp(prefix="paritybit-")
    os.environ[VARIABLE] = Settings(FOLDER).text()
    races.look_for_races()

import triton  # noqa: E402  # The check is installed before the engine.
import triton.language as tl  # noqa: E402

WIDTH = 64

Kernel = Any


def jit(function: Callable[..., Any]) -> Kernel:
    """Compile a kernel for the interpreter."""
    return triton.jit(function)


@jit
def branch(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Store a block if the count was zero."""
    held = tl.load(count)
    tl.store(count, held + 1)
    if held == 0:
        tl.store(out + tl.arange(0, width), 1)


@jit
def address(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Load from a table at the count, and store the entry to a block."""
    held = tl.load(count)
    tl.store(count, held + 1)
    tl.store(out + tl.arange(0, width), tl.load(table + held))


@jit
def outside(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Load from outside of the table if the count was not zero."""
    held = tl.load(count).to(tl.int64)
    tl.store(count, held + 1)
    tl.store(out, tl.load(table + held * 2**40))


@jit
def block_address(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Store a block at the count."""
    held = tl.load(count)
    tl.store(out + held + tl.arange(0, width), 1)
    tl.store(count, held + 1)


@jit
def joins(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Wait for all warps unless the count was zero."""
    held = tl.load(count)
    tl.store(count, held + 1)
    if held > 0:
        tl.debug_barrier()


@jit
def with_barrier(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Wait for all warps before the store."""
    held = tl.load(count)
    tl.debug_barrier()
    tl.store(count, held + 1)
    tl.store(out + held + tl.arange(0, width), 1)


@jit
def with_reduction(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Sum a block before the store."""
    held = tl.load(count)
    total = tl.sum(tl.load(table + tl.arange(0, width)), axis=0)
    tl.store(count, held + 1)
    tl.store(out + held + tl.arange(0, width), total)


@jit
def barrier_after(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Wait for all warps after the store, which is too late."""
    held = tl.load(count)
    tl.store(count, held + 1)
    tl.debug_barrier()
    tl.store(out + held + tl.arange(0, width), 1)


@jit
def with_atomic(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Add atomically before the store. All warps get the result, after a barrier."""
    held = tl.load(count)
    place = tl.atomic_add(table, 1)
    tl.store(count, held + 1)
    tl.store(out + held + place + tl.arange(0, width), 1)


@jit
def appended(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Append to a list. The thread that stores the count also stores the entry."""
    held = tl.load(count)
    tl.store(count, held + 1)
    tl.store(out + held, tl.load(table))
    tl.atomic_add(table + held, 1)
    if held < 1:
        tl.store(out + WIDTH, 7)
    tl.store(out + WIDTH + tl.arange(0, width), 1)


@jit
def turns(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Increment the count in each turn of a loop, and use it between two barriers."""
    for _ in range(3):
        tl.store(count, tl.load(count) + 1)
        tl.debug_barrier()
        held = tl.load(count)
        tl.debug_barrier()
        tl.store(out + held + tl.arange(0, width), 1)


def tuned(warps: int) -> Kernel:
    """Return a kernel with a race whose number of warps its autotuning says."""

    def kernel(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
        held = tl.load(count)
        tl.store(count, held + 1)
        tl.store(out + held + tl.arange(0, width), 1)

    return triton.autotune([triton.Config({}, num_warps=warps)], key=[])(triton.jit(kernel))


@jit
def later(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Have a race from the sixth launch on, when numpy runs it."""
    held = tl.load(count)
    if held < 5:
        tl.store(table, held)
        tl.store(out, 1)
    else:
        tl.store(count, 9 - held)
        tl.store(out + held + tl.arange(0, width), 1)


@jit
def arithmetic(count: Any, table: Any, out: Any, width: tl.constexpr) -> None:
    """Sample from a table. Numpy must compute the same bits."""
    place = tl.arange(0, width)
    held = tl.load(table + place).to(tl.float32) / 7.0 - 2
    noise = -tl.log(tl.maximum(tl.rand(tl.load(count) + 5, place.to(tl.int64) * 99), 1e-9))
    scores = tl.where(held > 0, tl.exp(held) * noise, tl.abs(held) / tl.sqrt(noise + 1))
    best, most = tl.argmax(scores, axis=0), tl.max(scores, axis=0)
    least, worst = tl.min(scores, axis=0, return_indices=True)
    square = held[:, None] * noise[None, :]
    scores += tl.sum(tl.dot(square, square), axis=1)
    pairs = (place.reshape(width // 2, 2) * tl.zeros_like(best)).reshape(width)
    for turn in range(tl.cdiv(width, 24)):
        pairs += (place - 30) // 7 * turn - (place - 30) % 7
    bits = ((place.to(tl.uint32) * 0xCC9E2D51) >> 7).to(tl.int32)
    pairs += tl.cumsum(bits & 15, 0) + (tl.sigmoid(held) * 1e6).to(tl.int32)
    pairs += tl.atomic_add(count + place % 2, place, mask=place % 3 > 0)
    if width < 0:
        tl.extra.cuda.gdc_wait()
    tl.debug_barrier()
    tl.store(out + place, (scores * 1e6).to(tl.int32) + best + worst + pairs)
    tl.store(out + width + place, bits + ((most - least) * count_of(place)).to(tl.int32))


@jit
def count_of(place: Any) -> Any:
    """Return an integer divided by another."""
    return (place + 1) / 3


@jit
def never(count: Any) -> None:
    """Never run."""


def launched(kernel: Kernel, start: int = 0, **named: Any) -> None:
    """Launch a kernel with two programs, which share no memory."""
    count = torch.full((2,), start, dtype=torch.int32)
    table = torch.arange(2 * WIDTH, dtype=torch.int32)
    out = torch.zeros(4 * WIDTH, dtype=torch.int32)
    kernel[(1,)](count, table, out, WIDTH, **named)


KERNELS = (
    *(branch, address, outside, block_address, joins, barrier_after),
    *(with_barrier, with_reduction, with_atomic, appended, turns),
)

UNTRIED = ("one warp", "tuned, one warp", "arithmetic", "with_atomic", "appended", "quantised")
"""Launches that cannot have a race, and of kernels with atomic operations."""


def entries() -> list[dict[str, Any]]:
    """Return the lines of the journal."""
    return lines_in(Path(FOLDER))


@jit
def quantised(numbers: Any, eighths: Any, width: Any) -> None:
    """Store numbers as floats of eight bits, and copy them."""
    places = tl.arange(0, width)
    tl.store(eighths + places, tl.clamp(tl.load(numbers + places) / 50.0, -448.0, 448.0))
    tl.store(eighths + width + places, tl.load(eighths + places))


def main() -> None:
    """Launch each kernel, and print the findings."""
    lines = journal.of_process()
    assert lines is not None
    lines.write_counts()
    found: dict[str, Any] = {}

    def run(name: str, kernel: Kernel, starts: Sequence[int] = (0,), **named: Any) -> None:
        before = len(entries())
        for start in starts:
            launched(kernel, start, **named)
        new = [entry for entry in entries()[before:] if entry["kind"] == "finding"]
        found[name] = [[one["cause"]["source"], one["text"]] for one in new]

    quicken()
    launches, slow = importlib.import_module(races.INTERPRETER).GridExecutor, list[str]()
    launch = launches.__call__

    def noted(executor: Any, *given: Any, **named: Any) -> None:
        slow.append(executor.fn.__name__)
        launch(executor, *given, **named)

    launches.__call__ = noted
    quicken_kernels()
    lines.lose()  # A failed hook of a connector does not concern the kernels.
    for kernel in KERNELS:
        run(kernel.fn.__name__, kernel)
    run("one warp", block_address, num_warps=1)
    run("tuned, one warp", tuned(1))
    run("tuned, eight warps", tuned(8))
    run("arithmetic", arithmetic, range(8))
    run("later", later, range(8))
    numbers = torch.linspace(-3, 3, 64) ** 9
    eighths = torch.zeros(2, 64, dtype=torch.float8_e4m3fn)
    quantised[(1,)](numbers, eighths, 64)
    found["quantised"] = []
    right = (numbers / 50).to(eighths.dtype)
    lines.end()
    report = {
        "found": found,
        "slow": slow.count("arithmetic"),
        "idle": [
            name.rpartition(".")[2]
            for entry in entries()
            for name, ran in entry.get("ran", {}).items()
            if not ran
        ],
        "eighths": [one.float().tolist() for one in eighths] == [right.float().tolist()] * 2,
        "tried": lines.counts[f"tried: {CHECK.name}"],
        "undecided": [entry["what"] for entry in entries() if entry["kind"] == "undecided"],
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
