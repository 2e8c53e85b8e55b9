"""Installs packages that an engine requires when it cannot start without them.

Most requirements of an engine are never imported here. A package is installed in its own folder
when a process of the engine could not start without it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from paritybit.compat import tomllib
from paritybit.engines import fetch

MISSED = re.compile(r"^ModuleNotFoundError: No module named '([\w]+)", re.MULTILINE)
"""Matches the last line of a process that could not import a package."""

FOLDER = "required-"
"""The prefix of the folder of a package."""


def required(source: Path) -> dict[str, str]:
    """Return the requirements that an engine declares, by the name of the package.

    `source` is its import folder, which has its metadata or its `pyproject.toml`.
    """
    found: dict[str, str] = {}
    for requirement in declared(source):
        name = re.match(r"[\w.-]+", requirement)
        if name is not None and "extra ==" not in requirement:
            found[plain(name[0])] = requirement.partition(";")[0].strip()
    return found


def declared(source: Path) -> Iterator[str]:
    """Yield the requirements of an engine as text."""
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
    """Normalise the name of a package or module for comparison."""
    return re.sub(r"[-_.]+", "_", name).lower()


def folders(source: Path) -> list[str]:
    """Return the folders of packages that were installed for the requirements of an engine."""
    homes = (fetch.dependencies_folder() / f"{FOLDER}{name}" for name in required(source))
    return [str(home) for home in homes if home.is_dir()]


def install_missed(source: Path, output: str) -> bool:
    """Install the package that a process could not import, if its engine requires it.

    `output` is the output of the process. Returns whether a package was installed, which is False
    without a package index.
    """
    missed = MISSED.findall(output)
    name = plain(missed[-1]) if missed else ""
    requirement, home = required(source).get(name), fetch.dependencies_folder() / f"{FOLDER}{name}"
    if requirement is None or home.is_dir():
        return False
    words = ("--no-deps", "--only-binary", ":all:", "--target")
    with fetch.filling(home) as target:
        fetch.pip("install", *words, str(target), requirement)
    return home.is_dir()
