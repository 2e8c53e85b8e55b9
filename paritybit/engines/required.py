"""Packages that an engine requires and that are not installed yet: found when it misses one.

Most of what an engine requires it never imports here. A package is installed, in a folder of its
own, when a process of the engine could not start without it.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paritybit.compat import tomllib
from paritybit.engines import fetch

MISSED = re.compile(r"^ModuleNotFoundError: No module named '([\w]+)", re.MULTILINE)
"""What a process that missed a package says at its end."""

FOLDER = "required-"
"""What the name of a package's folder begins with."""


def required(source: Path) -> dict[str, str]:
    """Return what an engine says that it requires: requirements, by the name of the package.

    `source` is its import folder, which has its metadata or its `pyproject.toml`.
    """
    found: dict[str, str] = {}
    for requirement in declared(source):
        name = re.match(r"[\w.-]+", requirement)
        if name is not None and "extra ==" not in requirement:
            found[plain(name[0])] = requirement.partition(";")[0].strip()
    return found


def declared(source: Path) -> Iterator[str]:
    """Yield the requirements of an engine as they are written."""
    for file in source.glob("*.dist-info/METADATA"):
        yield from re.findall(r"^Requires-Dist: (.*)$", file.read_text(encoding="utf-8"), re.M)
    try:
        text = (source / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text).get("project", {})
    except (OSError, ValueError):
        return
    listed = project.get("dependencies", ()) if isinstance(project, dict) else ()
    yield from (one for one in listed if isinstance(one, str))


def plain(name: str) -> str:
    """Return the name of a package or module as both are compared."""
    return re.sub(r"[-_.]+", "_", name).lower()


def folders(source: Path) -> list[str]:
    """Return the folders of packages that were installed for what an engine requires."""
    homes = (fetch.dependencies_folder() / f"{FOLDER}{name}" for name in required(source))
    return [str(home) for home in homes if home.is_dir()]


def install_missed(source: Path, said: str) -> bool:
    """Install the package that a process missed, if its engine requires it; return whether it is.

    `said` is what the process printed. Without an index, nothing is installed.
    """
    missed = MISSED.findall(said)
    name = plain(missed[-1]) if missed else ""
    requirement, home = required(source).get(name), fetch.dependencies_folder() / f"{FOLDER}{name}"
    if requirement is None or home.is_dir():
        return False
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        return fetch.install_one(home, requirement, Path(scratch) / name)
