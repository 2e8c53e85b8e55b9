"""Releases of engines that lie here, and scripts that try them in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.engines import fetch as engines
from properties.support.places import ROOT
from subjects.engines.shared.loading import package_folder

ASKED_FOR = "PARITYBIT_RELEASES"
"""The variable that, set, asks for the tests of releases: they take minutes."""


def package_of(version: str) -> Path:
    """Return where a release lies; skip the test if none was asked for, or it does not lie here."""
    if not os.environ.get(ASKED_FOR):
        pytest.skip("tests of releases were not run: `make test-releases` runs them")
    package = package_folder(engines.folder() / f"sglang-{version}")
    if package is None:
        pytest.skip(f"engine trials were not run: `make engine VERSION={version}` fetches one")
    return package


def told_by(module: str, version: str, *arguments: str) -> Any:
    """Return what a script says of a release that lies here, the last line of what it prints."""
    command = [sys.executable, "-m", module, str(package_of(version)), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
