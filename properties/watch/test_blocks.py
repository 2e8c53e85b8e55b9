"""Whole engines are watched while a block or a test runs, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paritybit.watch.settings import VARIABLE
from properties.support.places import ROOT

TOY = Path(__file__).parent / "toy"

SERVED = """
import pytest

def serve(fault=False):
    import toyengine
    engine = toyengine.Engine()
    engine.add("one", [3, 1, 4, 1, 5])
    engine.decode()
    if fault:
        engine.kv["full"][0][2] += 1
    engine.decode()
"""

BLOCKS = f"""{SERVED}
from paritybit.testing import UndecidedError, watching

with watching():
    serve()
with pytest.raises(AssertionError, match="corrupted read: request one reads position 1"):
    with watching():
        serve(fault=True)
with pytest.raises(UndecidedError, match="no forward pass"):
    with watching():
        pass
with pytest.raises(KeyError):
    with watching():
        raise KeyError
with pytest.raises(AssertionError, match="corrupted read") as found:
    with watching():
        serve(fault=True)
        raise KeyError
assert isinstance(found.value.__cause__, KeyError)
with watching():
    serve()
"""

TESTS = f"""{SERVED}
def test_right():
    serve()

def test_wrong():
    serve(fault=True)

def test_right_again():
    serve()

def test_without_an_engine():
    pass

@pytest.fixture
def late():
    yield
    serve(fault=True)

def test_that_ends_wrong(late):
    pass

import unittest

class Cases(unittest.TestCase):
    def test_right_case(self):
        serve()

    def test_wrong_case(self):
        serve(fault=True)
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder, with the toy engine and its connector."""
    variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
    variables |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TOY}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_block_raises_for_what_was_found_while_it_ran(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(BLOCKS, encoding="utf-8")
    done = run(tmp_path, "blocks.py")
    assert done.returncode == 0, done.stdout + done.stderr


WORKERS = {
    "a worker": ("-n", "1"),
    "a way to share tests, and no worker": ("--dist", "load"),
}
"""Options of xdist. Without any: see the last test."""


@pytest.mark.parametrize("workers", WORKERS)
def test_the_plugin_fails_the_test_during_which_something_was_found(
    tmp_path: Path, workers: str
) -> None:
    """A worker of xdist tells what it saw."""
    (tmp_path / "test_toy.py").write_text(TESTS, encoding="utf-8")
    plugins = ("-p", "paritybit", "-p", "no:cacheprovider")
    done = run(tmp_path, "-m", "pytest", *plugins, *WORKERS[workers])
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert "2 failed, 5 passed, 1 error" in text
    assert "corrupted read: request one reads position 1" in text
    for failed in ("FAILED test_toy.py::test_wrong", "ERROR test_toy.py::test_that_ends_wrong"):
        assert failed in text
    assert "FAILED test_toy.py::Cases::test_wrong_case" in text
    assert "paritybit: 18 forward passes were checked" in text


def test_what_is_found_after_the_last_test_fails_the_run(tmp_path: Path) -> None:
    """As an engine's own threads may go on."""
    late = f"{SERVED}\ndef test_right():\n    serve()\n"
    (tmp_path / "test_toy.py").write_text(late, encoding="utf-8")
    hook = f"{SERVED}\ndef pytest_sessionfinish(session):\n    serve(fault=True)\n"
    (tmp_path / "conftest.py").write_text(hook, encoding="utf-8")
    done = run(tmp_path, "-m", "pytest", "-p", "paritybit", "-p", "no:cacheprovider")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "paritybit: found after the last test: ERROR: paritybit: corrupted read" in done.stdout


def test_the_plugin_does_nothing_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_toy.py").write_text(TESTS, encoding="utf-8")
    done = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider")
    assert "7 passed" in done.stdout
    assert "paritybit" not in done.stdout.replace("plugins:", "")
