"""Folders of this tree, a copy of what it installs, and what scripts print."""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "properties" / "corpus"

PACKAGES = ("paritybit", "harness", "reference", "reports", "subjects", "docs")


def copy_packages(folder: Path) -> None:
    """Copy the packages of this tree, without evidence, into a folder."""
    ignored = shutil.ignore_patterns("__pycache__", "out", "evidence")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
