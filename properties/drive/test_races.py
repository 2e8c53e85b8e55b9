"""The check for races inside kernels, and their results on numpy, on small kernels."""

import json
import re
from pathlib import Path

import pytest

from paritybit.drive.stand_ins.kernels import TRIED
from properties.drive import racing_kernels
from properties.support.interpreting import run_interpreted

EFFECTS = {
    "branch": "ends before a block store",
    "address": "executes a block store with other operands",
    "outside": "loads from outside of the tensor",
    "block_address": "executes a block store with other operands",
    "joins": "executes a barrier more",
    "barrier_after": "executes a block store with other operands",
    "tuned, eight warps": "executes a block store with other operands",
    "later": "ends before a block store",
}
"""What a late warp does in each kernel that has a race. All other kernels have none."""


def test_a_kernel_has_a_race_if_a_late_warp_does_something_else(device: str) -> None:
    if device == "cuda":
        pytest.skip("the kernels are compiled where CUDA is")
    done = run_interpreted("properties.drive.racing_kernels")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    for name, findings in report["found"].items():
        effects = [EFFECTS[name]] if name in EFFECTS else []
        assert len(findings) == len(effects), name
        assert all(effect in text for effect, (_, text) in zip(effects, findings, strict=True))
    assert set(EFFECTS) <= set(report["found"])
    assert report["undecided"] == []
    assert report["idle"] == ["never"]
    assert report["slow"] == TRIED  # Numpy has the same results, and runs the others.
    assert report["eighths"]  # Rounded to the nearest, as Triton's interpreter does not.
    assert report["tried"] == len(report["found"]) - len(racing_kernels.UNTRIED)

    ((source, text),) = report["found"]["address"]
    lines = Path(racing_kernels.__file__).read_text(encoding="utf-8").splitlines()
    numbers = [int(number) for number in re.findall(r"line (\d+)", text)]
    assert [lines[number - 1].strip() for number in (int(source.split(":")[1]), *numbers)] == [
        "held = tl.load(count)",
        "tl.store(count, held + 1)",
        "tl.store(out + tl.arange(0, width), tl.load(table + held))",
    ]
