"""An engine that was fetched, what it imports, and the variables of its process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paritybit.engines import fetch, required
from paritybit.places import IMPORT_FOLDER

PINS = Path(__file__).parent / "pins"
"""Requirements files with a hash for each file, one per release of transformers."""


@dataclass(frozen=True)
class Environment:
    """A whole engine that lies here: its name, its import folder, and that of what it imports."""

    name: str
    source: Path
    dependencies: Path


def pins_for(transformers: str | None) -> Path:
    """Return the requirements file of the newest transformers that is not newer than wanted.

    The newest of all for None, the oldest where each is newer.
    """
    files = sorted(PINS.glob("transformers-*.txt"), key=lambda file: fetch.in_order(file.stem))
    if transformers is None:
        return files[-1]
    wanted = fetch.in_order(transformers)
    return [files[0], *(file for file in files if fetch.in_order(file.stem) <= wanted)][-1]


def variables(
    environment: Environment, device: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of an engine's process.

    Compiled files are kept in the cache: compiling anew takes longer than all the rest.
    """
    own = {name: value for name, value in inherited.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folders = [str(IMPORT_FOLDER), str(environment.source), str(environment.dependencies)]
    folders += required.folders(environment.source)
    if inherited.get("PYTHONPATH"):
        folders.append(inherited["PYTHONPATH"])
    own["PYTHONPATH"] = os.pathsep.join(folders)
    own["PYTHONPYCACHEPREFIX"] = str(fetch.dependencies_folder() / "pycache")
    own["PYTHONUNBUFFERED"] = "1"
    if device == "cpu":
        own["TRITON_INTERPRET"] = "1"
        own["CUDA_VISIBLE_DEVICES"] = ""
        own["OMP_NUM_THREADS"] = (
            "1"  # Tiny models gain nothing from threads, and a fork loses them.
        )
    return own
