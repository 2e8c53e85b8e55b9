"""An engine's index kernels on numpy."""

import json

import pytest

from properties.drive.kernels_on_numpy import LAUNCHES
from properties.support.interpreting import run_interpreted


def test_kernels_on_numpy_write_what_the_interpreter_of_triton_writes(device: str) -> None:
    """One that needs what numpy does not do here is left to it."""
    if device == "cuda":
        pytest.skip("the kernels are compiled where CUDA is")
    done = run_interpreted("properties.drive.kernels_on_numpy")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "listed": {"refused": False, "ran": LAUNCHES, "same": True},
        "counted": {"refused": True, "ran": 0, "same": True},
    }
