"""The environment of a run, and measured figures with their environment."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch
from paritybit.harness.errors import MalformedError
from paritybit.harness.machine.gpus import first_name
from paritybit.harness.records.codec import save
from paritybit.harness.records.revision import repository, revision
from paritybit.harness.records.schema import RunEnvironment

from paritybit import __version__


def environment(
    device: str, processes: int | None = None, name: str | None = None
) -> RunEnvironment:
    """Return the environment for a record: device, versions, commit, processes.

    `name` is the device's name. Give it in a process that must not initialise CUDA.
    """
    commit, dirty = revision()
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions |= {
        package: package_version(package) for package in ("torch", "triton", "numpy", "hypothesis")
    }
    return RunEnvironment(
        device=device,
        device_name=name or device_name(device),
        paritybit=__version__,
        versions=versions,
        commit=commit,
        dirty=dirty,
        repository=repository(),
        processes=processes,
    )


def device_name(device: str) -> str:
    """Return the name of the device, without the name of the host.

    The name comes from the driver, because initialising CUDA would occupy the GPU.
    """
    if device == "cuda":
        return first_name() or torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_evidence(
    kind: str,
    device: str,
    figures: dict[str, Any],
    path: Path,
) -> None:
    """Write measured figures with their environment.

    Raises CannotRunError if the file cannot be written.
    """
    data = {
        "format": f"paritybit-{kind}",
        "environment": environment(device),
        "figures": figures,
    }
    save(data, path)


def require_writable(path: Path) -> None:
    """Create the folder of a future file. Raises MalformedError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo() or path.is_char_device():  # Opening it would block.
            return
        new = not path.exists()
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise MalformedError(f"{path.name or path} cannot be written: {error.strerror}") from error
