"""Kernels that answer questions of checks on a GPU: they answer as ops do."""

import os
import subprocess
import sys

from properties.support.harness.questions import check_questions
from properties.support.places import ROOT


def test_each_kernel_answers_as_ops_do_of_a_clean_step_and_of_what_differs(device: str) -> None:
    """Compiled where CUDA is, else interpreted."""
    if device == "cuda":
        assert check_questions(device)
        return
    process = subprocess.run(
        [sys.executable, "-m", "properties.support.harness.questions"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 0
