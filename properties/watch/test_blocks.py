"""An engine of another package is watched in a process of its own: a block, a test, a command."""

import os
import subprocess
import sys
from pathlib import Path

from paritybit.harness.cli.exit_codes import FINDING

from paritybit.watch.settings import VARIABLE
from properties.support.places import ROOT, copy_packages

TOY = Path(__file__).parent / "toy"

SERVED = """
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
import pytest
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
import pytest

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


def run(folder: Path, *words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the packages in `root`, the toy engine and its connector."""
    variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
    variables |= {"PYTHONPATH": f"{root}{os.pathsep}{TOY}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


CHECK = """
from paritybit.watch.observations import Check


def judge(reads):
    return reads.findings(CHECK.name, reads.position > 3, "it is beyond the fourth")


CHECK = Check("long context", "reads", "a request reads four positions at most", judge)
"""


def test_a_check_is_a_file_and_its_line_in_a_list(tmp_path: Path) -> None:
    copy_packages(tmp_path)
    checks = tmp_path / "paritybit" / "watch" / "checks"
    (checks / "long_context.py").write_text(CHECK)
    listed = (checks / "__init__.py").read_text()
    (checks / "__init__.py").write_text(listed.replace("MODULES = (", "MODULES = ('long_context',"))
    words = "-m", "paritybit", "watch", "--out", "out", "--", sys.executable, "-c"
    done = run(tmp_path, *words, f"{SERVED}\nserve(fault=True)", root=tmp_path)
    assert done.returncode == FINDING, done.stdout + done.stderr
    for shown in ("corrupted read", "long context", "reads position 4"):
        assert shown in done.stderr


def test_a_block_raises_for_what_was_found_while_it_ran(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(BLOCKS, encoding="utf-8")
    done = run(tmp_path, "blocks.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_fails_the_test_during_which_something_was_found(tmp_path: Path) -> None:
    """A worker of xdist tells what it saw."""
    (tmp_path / "test_toy.py").write_text(TESTS, encoding="utf-8")
    plugins = ("-p", "paritybit", "-p", "no:cacheprovider")
    done = run(tmp_path, "-m", "pytest", *plugins, "-n", "1")
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
