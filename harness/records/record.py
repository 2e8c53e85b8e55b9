"""Reads and writes run records, and writes measured figures with their environment."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch
from paritybit.harness.errors import MalformedError
from paritybit.harness.machine.gpus import first_name
from paritybit.harness.machine.workers import Workers
from paritybit.harness.records.case import complete, dump_json, read_json, visible
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.revision import repository, revision
from paritybit.harness.records.schema import FORMAT, VERSION, Environment, Record, RunAgain
from paritybit.harness.records.typed_json import to_json

from paritybit import __version__


def environment(
    device: str, workers: Workers | None = None, name: str | None = None
) -> Environment:
    """Return the environment for a record: device, versions, commit, workers.

    `name` is the device's name. Give it in a process that must not initialise CUDA.
    """
    commit, dirty = revision()
    return Environment(
        device=device,
        device_name=name or device_name(device),
        python=platform.python_version(),
        torch=package_version("torch"),
        triton=package_version("triton"),
        numpy=package_version("numpy"),
        hypothesis=package_version("hypothesis"),
        paritybit=__version__,
        commit=commit,
        dirty=dirty,
        processes=workers.processes if workers is not None else None,
        gpus=len(workers.gpus) if workers is not None else None,
        mps=workers.mps if workers is not None else None,
        repository=repository(),
        again=tuple(RunAgain(*told) for told in workers.again) if workers is not None else (),
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


def write(record: Record, path: Path) -> None:
    """Write a run record. Raises CannotRunError if it cannot be written."""
    write_whole(path, dump_json({"format": FORMAT, "version": VERSION, **to_json(record)}))


def write_evidence(
    kind: str,
    device: str,
    figures: dict[str, Any],
    path: Path,
    workers: Workers | None = None,
    name: str | None = None,
) -> None:
    """Write measured figures with their environment.

    Raises CannotRunError if the file cannot be written.
    """
    data = {
        "format": f"paritybit-{kind}",
        "version": VERSION,
        "environment": to_json(environment(device, workers, name)),
        "figures": figures,
    }
    write_whole(path, dump_json(data))


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


def load(path: Path) -> Record:
    """Load a run record. Raises as `read_json` and `record_of` do."""
    return record_of(read_json(path), path.name)


def record_of(data: Any, name: str) -> Record:
    """Return the run record from a file's JSON data. Raises MalformedError for any other data."""
    return complete(Record, visible(data), name, FORMAT, VERSION, called="run record")
