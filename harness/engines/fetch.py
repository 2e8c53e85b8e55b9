"""Engines by name or by folder: where they lie, and how those that do not are fetched, apart."""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from harness.errors import CannotRunError, MalformedError, quoted
from subjects.engines.shared.loading import PACKAGE, package_folder

ROOT = Path(__file__).parents[2]
FOLDER_VARIABLE = "PARITYBIT_ENGINES"
"""Names the folder of fetched engines, where it is not `.engines` of this tree."""

DEPENDENCIES = "dependencies"
RELEASES = ROOT / "engine-releases.txt"
"""Hashes of the files of releases; one that is newer has none."""

OTHER_HASH = "DO NOT MATCH THE HASHES"
"""What the package client says where a file is not what is pinned."""

VERSION = r"[0-9]+(?:[.][0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:[.]post[0-9]+)?(?:[.]dev[0-9]+)?"
"""What a release's version looks like."""

NAMED = re.compile(rf"{PACKAGE}==({VERSION})")


@dataclass(frozen=True)
class Found:
    """An engine that lies here: what it is called, and its package's folder."""

    name: str
    package: Path


def folder() -> Path:
    """Return where engines are kept."""
    return Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".engines")


def find(spec: str) -> Found:
    """Return the engine of `sglang==VERSION`, fetched if need be, or of a folder.

    Raises ValueError for what is neither, and for a release that does not exist;
    CannotRunError for one that cannot be had here.
    """
    named = NAMED.fullmatch(spec)
    if named is None:
        package = package_folder(Path(spec))
        if package is None:
            raise MalformedError(
                f"{quoted(spec)} is no engine: neither {PACKAGE}==VERSION nor a folder with"
                f" {PACKAGE}/srt or python/{PACKAGE}/srt"
            )
        _require_dependencies()
        return Found(f"{PACKAGE} in {Path(spec).name or spec}", package.resolve())
    return fetch(named[1])


def require_release(version: str) -> None:
    """Raise MalformedError for what is no version number: it becomes part of a folder's name."""
    if re.fullmatch(VERSION, version) is None:
        raise MalformedError(f"{quoted(version)} is not a release, as 0.5.12 is")


def fetch(version: str) -> Found:
    """Return a release, unpacked; fetch it and what it imports with the package client first.

    Raises as `find` does.
    """
    require_release(version)
    home = folder() / f"{PACKAGE}-{version}"
    package = package_folder(home)
    if package is None:
        with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
            wheel = _download(version, Path(scratch))
            unpacked = Path(scratch) / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
            package = package_folder(unpacked)
            if package is None:
                raise CannotRunError(f"{PACKAGE} {version} has no {PACKAGE}/srt in its wheel")
            _move(unpacked, home)
        package = package_folder(home)
        assert package is not None
    _require_dependencies()
    return Found(f"{PACKAGE} {version}", package)


def newest() -> str:
    """Return the newest release on the index. Raises CannotRunError where there is no index."""
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        wheel = _download(None, Path(scratch))
        return wheel.name.split("-")[1]


def released(oldest: str) -> list[str]:
    """Return every release on the index from one on, in order. Raises as `newest` does."""
    said = _pip("index", "versions", PACKAGE)
    listed = re.search(r"Available versions: (.*)", said)
    if listed is None:
        raise CannotRunError(f"the releases of {PACKAGE} are not known: no index answers")
    versions = [version.strip() for version in listed[1].split(",")]
    since = [version for version in versions if in_order(version) >= in_order(oldest)]
    return sorted(since, key=in_order)


def fetched() -> list[str]:
    """Return the releases that lie here, in order."""
    names = [home.name.removeprefix(f"{PACKAGE}-") for home in folder().glob(f"{PACKAGE}-*")]
    return sorted(names, key=in_order)


def in_order(version: str) -> list[int]:
    """Return what versions sort by."""
    return [int(part) for part in re.findall(r"\d+", version)]


def _download(version: str | None, into: Path) -> Path:
    """Return the wheel of a release, the newest for None. Raises as `find` does."""
    wanted = PACKAGE if version is None else f"{PACKAGE}=={version}"
    words, pins = [wanted], pinned(wanted)
    if pins is not None:
        (into / "pinned.txt").write_text(pins)
        words = ["--require-hashes", "-r", str(into / "pinned.txt")]
    said = _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(into), *words)
    wheels = list(into.glob("*.whl"))
    if wheels:
        return wheels[0]
    if OTHER_HASH in said:
        raise CannotRunError(f"what the index has of {wanted} has another hash than is pinned")
    listed = re.search(r"from versions: (.*)\)", said)
    if version is not None and listed is not None and listed[1].strip() not in {"", "none"}:
        raise MalformedError(
            f"there is no release {version} of {PACKAGE} for this Python on the index"
        )
    raise CannotRunError(f"{wanted} is not here and could not be fetched: no index answers")


def pinned(wanted: str) -> str | None:
    """Return the requirement of a release with the hashes of its files, None where it has none."""
    block = re.search(rf"^{re.escape(wanted)} \\\n(?: +--hash=.*\n?)+", RELEASES.read_text(), re.M)
    return None if block is None else block[0]


def _require_dependencies() -> None:
    """Install what engines import, apart from the main environment, unless it is there."""
    home = folder() / DEPENDENCIES
    if home.exists():
        return
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        target = Path(scratch) / DEPENDENCIES
        said = _pip(
            "install",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(target),
            "-r",
            str(ROOT / "engine-dependencies.txt"),
        )
        if not target.exists():
            if OTHER_HASH in said:
                raise CannotRunError("what engines import has another hash than is pinned")
            last = (said.strip().splitlines() or ["no output"])[-1]
            raise CannotRunError(f"what engines import could not be installed: {last}")
        _move(target, home)


def _move(source: Path, home: Path) -> None:
    """Put a whole folder in its place in one move."""
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = home.with_name(f".{home.name}-{os.getpid()}")
    subprocess.run(["cp", "-r", str(source), str(beside)], check=True)
    beside.rename(home)


def _pip(*arguments: str) -> str:
    """Run the package client and return all it says."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
