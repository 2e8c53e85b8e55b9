"""Releases of engines that lie here, and scripts that try them in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines.adapters.packages import PACKAGES, SGLANG
from paritybit.subjects.engines.shared.loading import folder_of_package

from paritybit.drive.transformers import PACKAGE as TRANSFORMERS
from properties.support.places import ROOT

ASKED_FOR = "PARITYBIT_RELEASES"
"""The variable that, set, asks for the tests of releases: they take minutes."""

MOST_SECONDS = 3600.0
"""Seconds after which a script that tries a release is taken to hang."""


def package_of(version: str, engine: str = SGLANG.name) -> Path:
    """Return where a release of an engine lies.

    The test is skipped if none was asked for, or it does not lie here.
    """
    if not os.environ.get(ASKED_FOR):
        pytest.skip("tests of releases were not run: `make test-releases` runs them")
    home = engines.folder() / f"{engine}-{version}"
    marker = {**PACKAGES, TRANSFORMERS.name: TRANSFORMERS}[engine].marker
    package = folder_of_package(home, engine, marker)
    if package is None:
        asked = version if engine == SGLANG.name else f"{engine}=={version}"
        pytest.skip(f"engine trials were not run: `make engine VERSION={asked}` fetches one")
    return package


def told_by(module: str, version: str, *arguments: str) -> Any:
    """Return what a script says of a release that lies here, the last line of what it prints."""
    return told_of(module, package_of(version), *arguments)


def told_of(module: str, package: Path, *arguments: str) -> Any:
    """Return what a script says of the package in a folder, the last line of what it prints."""
    command = [sys.executable, "-m", module, str(package), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
