"""Run records: what a run did and found, as JSON. Reports are made from this alone.

A record names no host, no user and no absolute path.
"""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from harness import __version__
from harness.campaigns.case import dump_json, load_json

FORMAT = "paritybit-run"
VERSION = 3
PACKAGES = ("torch", "triton", "numpy", "hypothesis")
COMMIT_VARIABLE = "PARITYBIT_COMMIT"
"""Names the commit where the tree is a copy without its git folder."""


def environment(device: str, name: str | None = None) -> dict[str, Any]:
    """Return what the figures of a record depend on: device, versions, commit.

    `name` is the device's, for a process that must not initialise CUDA to ask for it.
    """
    return {
        "device": device,
        "device_name": name or device_name(device),
        "python": platform.python_version(),
        **{name: package_version(name) for name in PACKAGES},
        "paritybit": __version__,
        **revision(),
    }


def device_name(device: str) -> str:
    """Return what the device is called, without saying whose it is."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def revision() -> dict[str, Any]:
    """Return the commit of this tree, and whether the tree differs from it; None where unknown."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return {"commit": named, "dirty": None}
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain"))}


def _git(*arguments: str) -> str | None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def write(record: dict[str, Any], path: Path) -> None:
    """Write a run record."""
    path.write_text(dump_json({"format": FORMAT, "version": VERSION, **record}))


def write_evidence(
    kind: str, device: str, figures: dict[str, Any], path: Path, name: str | None = None
) -> None:
    """Write measured figures, with the environment they were measured in.

    Raises ValueError where the file cannot be written.
    """
    data = {
        "format": f"paritybit-{kind}",
        "version": VERSION,
        "environment": environment(device, name),
        "figures": figures,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_json(data))
    except OSError as error:
        raise ValueError(f"{path.name} cannot be written: {error.strerror}") from error


def require_writable(path: Path) -> None:
    """Make the folder of a file to come. Raises ValueError where the file could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be written: {error.strerror}") from error


def load(path: Path) -> dict[str, Any]:
    """Return the run record of a file. Raises ValueError, in one sentence, for any other file."""
    return load_json(path, FORMAT, VERSION)
