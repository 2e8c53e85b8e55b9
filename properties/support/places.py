"""Where things lie in this tree, and a copy of what it installs."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "properties" / "corpus"

PACKAGES = ("paritybit", "harness", "reference", "reports", "subjects")


def copy_packages(folder: Path) -> None:
    """Copy the packages of this tree, without evidence, into a folder."""
    ignored = shutil.ignore_patterns("__pycache__", "out", "evidence")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
