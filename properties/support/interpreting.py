"""Running a module's script under Triton's interpreter, which a process chooses as it starts."""

import os
import subprocess
import sys

from properties.support.places import ROOT

MOST_SECONDS = 1200.0
"""Seconds after which such a process is taken to hang: many times what any of them takes."""


def run_interpreted(module: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this tree in a process whose kernels are interpreted, to its end."""
    return subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
