"""Print "ready" and exit 0 if this interpreter has what pyproject.toml asks for, offline."""

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, as in (2, 11, 0) of 2.11.0+cu130."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])


def satisfied(requirement: str) -> bool:
    """Whether a `name>=version[; marker]` requirement of pyproject.toml is met here."""
    wanted, _, marker = requirement.partition(";")
    if "platform_system" in marker and platform.system() not in marker:
        return True
    if "python_version" in marker and sys.version_info >= (3, 11):
        return True
    name, _, least = wanted.strip().partition(">=")
    try:
        return numbers(importlib.metadata.version(name)) >= numbers(least)
    except importlib.metadata.PackageNotFoundError:
        return False


project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
if sys.version_info < numbers(project["requires-python"].removeprefix(">=")):
    sys.exit(1)
if not all(map(satisfied, project["dependencies"])):
    sys.exit(1)
sys.stdout.write("ready\n")
