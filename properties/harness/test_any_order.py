"""No test depends on its order: what a test leaves behind fails it, and the order can be drawn."""

import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from properties.support import any_order
from properties.support.harness.command_line import python
from properties.support.places import ROOT

LEAVING = """
import gc, os, random, signal, sys

import properties.support.places as places
import pytest
import torch

{code}
"""

LEFT = {
    "os.environ['LEFT'] = '1'": "environment variable LEFT",
    "sys.path.append('left')": "sys.path",
    "signal.signal(signal.SIGALRM, lambda *_: None)": "handler of SIGALRM",
    "gc.disable()": "garbage collection",
    "torch.set_default_dtype(torch.float64)": "torch.get_default_dtype",
    "torch.nn.modules.module.register_module_forward_hook(print)": "global hooks",
    "places.ROOT = places.ROOT / 'left'": "properties.support.places:ROOT",
}
"""Ways to leave something behind, and what the failure names."""


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this project's pytest over one file with tests."""
    path = folder / "test_it.py"
    path.write_text(LEAVING.format(code=code))
    options = ("-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-p", "conftest")
    return python("-m", "pytest", *options, *words, str(path), folder=ROOT)


def test_a_test_that_leaves_something_behind_fails_and_names_it(tmp_path: Path) -> None:
    """And no other test does; two that draw random numbers draw the same."""
    tests = [f"def test_left_{number}(): {code}" for number, code in enumerate(LEFT)]
    draws = "def test_drawn_{}(): assert (random.random(), float(torch.rand(()))) == {}"
    drawn = random.Random(0).random(), float(torch.rand((), generator=torch.manual_seed(0)))
    tests = [*(draws.format(number, drawn) for number in range(2)), *tests]
    said = run(tmp_path, "\n".join(tests)).stdout
    for name in LEFT.values():
        assert name in said, said
    assert f"{len(tests)} passed, {len(LEFT)} errors" in said


def test_a_seed_gives_an_order_and_the_same_order_again() -> None:
    def ordered(seed: int | None) -> list[int]:
        config = SimpleNamespace(getoption=lambda _: seed)
        items = list(range(10))
        any_order.pytest_collection_modifyitems(cast(Any, config), cast(Any, items))
        return items

    assert ordered(None) == sorted(ordered(1)) == list(range(10))
    assert ordered(1) == ordered(1) != ordered(2)


def old_setattr(patch: pytest.MonkeyPatch, target: object, name: str, value: object) -> None:
    """Set an attribute as pytest before 9.2 does: an undo sets what was inherited."""
    patch._setattr.append((target, name, getattr(target, name)))
    setattr(target, name, value)


def test_an_undone_patch_leaves_nothing_on_an_instance() -> None:
    """A bound method that stays on an object is found by whatever test shares the object."""

    class Shared:
        def method(self) -> int:
            return 1

    one = Shared()
    with pytest.MonkeyPatch.context() as patch:
        any_order.taking_back(old_setattr)(patch, one, "method", lambda: 2)
        assert one.method() == 2
    assert (one.method(), vars(one)) == (1, {})
