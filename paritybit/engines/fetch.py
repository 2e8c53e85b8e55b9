"""Finds engines by name or folder, and downloads releases apart from the user's environment."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paritybit.harness.errors import CannotRunError, MalformedError, quote

from paritybit.engines.packages import PACKAGES, Package
from paritybit.places import OWN_ENGINE, cache_folder

FOLDER_VARIABLE = "PARITYBIT_ENGINES"
"""The variable with the folder of engines, in place of `engines` in the user's cache."""

PINS = Path(__file__).parent / "pins"
"""The folder of requirements files with hashes, for the dependencies of engines."""

RELEASES = PINS / "engine-releases.txt"
"""The hashes of the files of releases. Newer releases have none."""

OTHER_HASH = "DO NOT MATCH THE HASHES"
"""A part of pip's message for a wrong hash."""

VERSION = r"[0-9]+(?:[.][0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:[.]post[0-9]+)?(?:[.]dev[0-9]+)?"


@dataclass(frozen=True)
class EngineFolder:
    """An engine on this machine: its name for reports, and the folder of its package."""

    name: str
    package: Path


def folder() -> Path:
    """Return the folder of engines."""
    return Path(os.environ.get(FOLDER_VARIABLE) or cache_folder() / "engines")


def dependencies_folder() -> Path:
    """Return the folder of the dependencies of engines, which depend on the version of Python."""
    return folder() / str(sys.implementation.cache_tag)


def find(spec: str) -> EngineFolder:
    """Return the engine of `NAME==VERSION`, which is downloaded if necessary, or of a folder.

    Raises MalformedError for any other text, a release that does not exist, and a file with a wrong
    hash. Raises CannotRunError if a download fails.
    """
    package = package_of(spec)
    version = version_in(spec, package)
    if version is not None:
        return fetch(version, package)
    home = package.folder_in(Path(spec))
    assert home is not None
    _require_dependencies(package)
    # Not the target of a link: packages beside the link belong to the engine.
    package_folder = home.parent.resolve() / home.name
    return EngineFolder(f"{package.name} in {Path(spec).name or spec}", package_folder)


def package_of(spec: str, known: Collection[Package] = PACKAGES.values()) -> Package:
    """Return the engine that `NAME==VERSION` or a folder names, out of those that are `known`.

    Raises MalformedError for any other text, and for a folder with the source of several engines.
    """
    every = [package for package in known if version_in(spec, package) or has(spec, package)]
    found = [package for package in every if not package.imported] or every
    if len(found) == 1:
        return found[0]
    if found:
        raise MalformedError(
            f"{quote(spec)} contains the source of several engines; name a folder with only one"
        )
    names = ", ".join(f"{package.name}[==VERSION]" for package in known)
    folders = ", ".join(f"{package.name}/{package.marker}" for package in known)
    raise MalformedError(
        f"{quote(spec)} is not an engine; expected one of {names}, or a folder with {folders}, "
        f"directly or below python or src; others need 'watch -- COMMAND': see {OWN_ENGINE}"
    )


def version_in(spec: str, package: Package) -> str | None:
    """Return the version in `NAME==VERSION` of a package, or None for other text."""
    named = re.fullmatch(rf"{package.name}==({VERSION})", spec)
    return None if named is None else named[1]


def has(spec: str, package: Package) -> bool:
    """Return whether a folder contains an engine."""
    try:
        return package.folder_in(Path(spec)) is not None
    except (OSError, ValueError):  # The text cannot be a path.
        return False


def require_release(version: str, package: Package) -> None:
    """Raise MalformedError for an invalid version, because it becomes part of a folder's name."""
    if re.fullmatch(VERSION, version) is None:
        raise MalformedError(f"{quote(version)} is not a release number such as {package.example}")


def fetch(version: str, package: Package) -> EngineFolder:
    """Return an unpacked release. Downloads it if necessary. Raises as `find` does."""
    require_release(version, package)
    name = package.name
    home = folder() / f"{name}-{version}"
    if package.folder_in(home) is None:
        with filling(home) as unpacked, tempfile.TemporaryDirectory() as scratch:
            _unpack(_download(version, Path(scratch), package), unpacked, package)
            if package.folder_in(unpacked) is None:
                raise CannotRunError(
                    f"the wheel of {name} {version} contains no {name}/{package.marker}"
                )
    _require_dependencies(package)
    found = package.folder_in(home)
    assert found is not None
    return EngineFolder(f"{name} {version}", found)


def _unpack(wheel: Path, into: Path, package: Package) -> None:
    """Unpack what is needed of a wheel. Raises CannotRunError for another file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            needed = [one for one in archive.namelist() if not one.endswith(package.unneeded)]
            archive.extractall(into, needed)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise CannotRunError(f"{wheel.name} is not a valid wheel: {error}") from error


@contextmanager
def filling(home: Path) -> Iterator[Path]:
    """Yield a folder that becomes `home` at the end, unless it is empty or `home` exists then.

    Raises CannotRunError, whose message has no path, if the folder cannot be written.
    """
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=home.parent) as scratch:
            (fresh := Path(scratch) / home.name).mkdir()
            yield fresh
            if any(fresh.iterdir()):
                fresh.rename(home)
    except OSError as error:
        if not home.is_dir():
            reason = error.strerror or "some files could not be written"
            raise CannotRunError(
                f"cannot store {home.name} in the engine folder ({FOLDER_VARIABLE}): {reason}"
            ) from error


def newest(package: Package) -> str:
    """Return the newest release on the package index. Raises CannotRunError without an index."""
    output = pip(
        f"looking for releases of {package.name}",
        "index",
        "versions",
        "--only-binary",
        ":all:",
        package.name,
    )
    found = re.search(rf"^{package.name} \(({VERSION})\)$", output, re.MULTILINE)
    if found is None:
        raise CannotRunError(
            f"the newest release of {package.name} is not known because no package index answers"
        )
    return found[1]


def with_version(spec: str) -> str:
    """Return the newest release for the name of an engine alone, and any other text as it is.

    A folder of that name with the engine's source stays a folder. Raises as `newest` does.
    """
    package = PACKAGES.get(spec)
    if package is None or has(spec, package):
        return spec
    return f"{spec}=={newest(package)}"


PHASES = {"dev": -4, "a": -3, "b": -2, "rc": -1, "post": 1}


def in_order(version: str) -> tuple[tuple[int, ...], ...]:
    """Return the sort key of a version: first its numbers. A candidate comes before its release."""
    number, *_ = re.findall(r"\d+(?:[.]\d+)*", version)
    phases = re.findall(r"(dev|a|b|rc|post)(\d+)", version.partition(number)[2])
    later = ((PHASES[phase], int(count)) for phase, count in phases)
    return tuple(map(int, number.split("."))), *later, (0, 0)


def _download(version: str, into: Path, package: Package) -> Path:
    """Download the wheel of a release. Raises errors as `find` does."""
    wanted = f"{package.name}=={version}"
    words = [wanted]
    pins = re.search(rf"^{re.escape(wanted)} \\\n(?: +--hash=.*\n?)+", RELEASES.read_text(), re.M)
    if pins is not None:
        (into / "pinned.txt").write_text(pins[0])
        words = ["--require-hashes", "-r", str(into / "pinned.txt")]
    words = ["--no-deps", "--only-binary", ":all:", "--dest", str(into), *words]
    output = pip(f"downloading {package.name} {version}", "download", *words)
    wheels = list(into.glob("*.whl"))
    if wheels:
        return wheels[0]
    if OTHER_HASH in output:
        raise MalformedError(
            f"the hash of {wanted} on the package index differs from the pinned hash"
        )
    listed = re.search(r"from versions: (.*)\)", output)
    if listed is not None and listed[1].strip() not in {"", "none"}:
        raise MalformedError(
            f"the package index has no {package.name} {version} for this Python version"
        )
    raise CannotRunError(
        f"{wanted} is not installed and cannot be downloaded because no package index answers"
    )


def _require_dependencies(package: Package) -> None:
    for name in package.dependencies:
        install(name, PINS / f"engine-{name}.txt")


def install(name: str, requirements: Path) -> None:
    """Install a folder of dependencies from a requirements file, unless it exists.

    Raises CannotRunError if that fails, and MalformedError if the hash of a file is wrong.
    """
    home = dependencies_folder() / name
    if home.exists():
        return
    with filling(home) as target:
        words = ("--no-deps", "--require-hashes", "--target", str(target), "-r", str(requirements))
        output = pip(f"downloading packages that engines need ({name})", "install", *words)
    if not home.exists():
        if OTHER_HASH in output:
            raise MalformedError(
                "the hash of a dependency of the engine differs from the pinned hash"
            )
        last = (output.strip().splitlines() or ["no output"])[-1]
        raise CannotRunError(f"cannot install the dependencies of the engine: {last}")


def pip(what: str, *arguments: str) -> str:
    """Say what pip does, run it, and return its output. Raises CannotRunError if it is missing."""
    if importlib.util.find_spec("pip") is None:
        raise CannotRunError(
            "downloading an engine needs the package pip: install the extra 'paritybit[engines]'"
        )
    sys.stderr.write(f"paritybit: {what}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
