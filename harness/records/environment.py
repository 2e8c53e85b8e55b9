"""The environment of a run: versions, commit and device. Imports no torch."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import msgspec
from paritybit.harness.machine.gpus import first_name

from paritybit import __version__
from paritybit.places import SOURCES

COMMIT_VARIABLE = "PARITYBIT_COMMIT"
"""The environment variable with the commit, for a copy of the tree without its git folder."""

PACKAGES = ("torch", "triton", "numpy", "hypothesis")


class RunEnvironment(msgspec.Struct, frozen=True):
    """The environment of a run. None for unknown values.

    - `versions`: the versions of Python and of packages, by name.
    - `dirty`: whether the tree differed from the commit.
    - `device`: the name of the device. A run of `watch` has those of its processes instead.
    - `processes`: the number of worker processes of `regress`.
    """

    paritybit: str
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool | None
    device: str | None = None
    processes: int | None = None


def environment(device: str | None = None, processes: int | None = None) -> RunEnvironment:
    """Return the environment of this process."""
    commit, dirty = revision()
    versions = {"python": platform.python_version()}
    return RunEnvironment(
        paritybit=__version__,
        versions={**versions, **{name: package_version(name) for name in PACKAGES}},
        commit=commit,
        dirty=dirty,
        device=device and device_name(device),
        processes=processes,
    )


def device_name(device: str) -> str:
    """Return the name of a device as the driver has it, which does not initialise CUDA."""
    if device == "cuda":
        return f"{first_name() or 'GPU'} (cuda)"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def revision() -> tuple[str | None, bool | None]:
    """Return the commit of this tree, and whether the tree differs from it. None if unknown."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named, None
    commit = commit_of(SOURCES)
    return commit, None if commit is None else bool(git(SOURCES, "status", "--porcelain"))


def commit_of(folder: Path) -> str | None:
    """Return the commit of a source tree in a folder, or None without a git repository."""
    return git(folder, "rev-parse", "HEAD")


def git(folder: Path, *words: str) -> str | None:
    """Return what git prints in a repository, or None if it fails."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
