"""Releases of engines that lie here, and scripts that try them in a process of their own."""

import os
from pathlib import Path

import pytest

from paritybit.engines import fetch as engines
from paritybit.engines.packages import PACKAGES, SGLANG

ASKED_FOR = "PARITYBIT_RELEASES"
"""The variable that, set, asks for the tests of releases: they take minutes."""


def require_asked() -> None:
    """Skip the test if no tests of releases were asked for."""
    if not os.environ.get(ASKED_FOR):
        pytest.skip("tests of releases were not run: PARITYBIT_RELEASES=1 asks for them")


def package_of(version: str, engine: str = SGLANG.name) -> Path:
    """Return where a release of an engine lies.

    The test is skipped if none was asked for, or it does not lie here.
    """
    require_asked()
    home = engines.folder() / f"{engine}-{version}"
    package = PACKAGES[engine].folder_in(home)
    if package is None:
        asked = version if engine == SGLANG.name else f"{engine}=={version}"
        pytest.skip(f"engine trials were not run: `paritybit engine {asked}` fetches one")
    return package
