"""The wheel, and commands of an installed paritybit outside a checkout."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK

from paritybit import __version__
from paritybit.engines import fetch as engines
from properties.support.places import CORPUS, PACKAGES, ROOT, copy_packages
from properties.support.releases import require_asked

BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")

MOST_SECONDS = 900.0
"""Seconds after which a command is taken to hang."""

RELEASE = "0.5.12"
"""A release of sglang that has fixed swa_pad."""

ALONE = ("--no-deps", "--no-index", "--ignore-installed", "--no-compile")
"""Options of pip for a wheel whose dependencies, or an older self, another environment has.

Only what is imported is compiled.
"""

pytestmark = [
    pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("hatchling", "pip")
]


def run(words: Sequence[str | Path], cwd: Path, **environment: str) -> tuple[int, str]:
    """Run a command, without this tree on its path; return its exit code and all it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in FROM_THE_SUITE}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


FROM_THE_SUITE = (
    *("PYTHONPATH", "PYTHONPYCACHEPREFIX"),
    *("HYPOTHESIS_STORAGE_DIRECTORY", "PYTEST_XDIST_WORKER"),
)
"""Variables that would tell a command about the suite that starts it."""


def build(source: Path, target: str, into: Path) -> Path:
    """Build a wheel or an sdist from a folder, and return its file."""
    code, said = run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", into],
        source,
    )
    assert code == OK, said
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what this tree builds from."""
    folder = tmp_path_factory.mktemp("tree")
    copy_packages(folder)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this tree."""
    return build(tree, "wheel", tmp_path_factory.mktemp("wheel"))


@dataclass
class Installed:
    """A fresh environment with the wheel, and an empty project next to it."""

    python: Path
    site: Path
    gained: set[str]
    project: Path
    cache: Path

    def paritybit(self, *words: str) -> tuple[int, str]:
        """Run a command of paritybit in the project; return its exit code and output."""
        return run(
            [self.python, "-m", "paritybit", *words],
            self.project,
            XDG_CACHE_HOME=str(self.cache),
            PARITYBIT_ENGINES=str(engines.folder()),
            PIP_RETRIES="0",
        )

    def files(self) -> set[str]:
        """Return the files in site-packages, without those that Python compiles."""
        found = (self.site / "paritybit").rglob("*")
        return {str(path) for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a fresh environment, which finds its dependencies in this one."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "environment", symlinks=True)
    python = folder / "environment" / "bin" / "python"
    (site,) = (folder / "environment").glob("lib/python3*/site-packages")
    mine = [path for path in sys.path if path.endswith("-packages")]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in mine))
    before = {path.name for path in site.iterdir()}
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    code, said = run([*pip, "install", *ALONE, wheel], folder)
    assert code == OK, said
    project = folder / "project"
    (project / "harness").mkdir(parents=True)
    (project / "harness" / "__init__.py").write_text("raise RuntimeError('a folder of the user')\n")
    gained = {path.name for path in site.iterdir()} - before
    return Installed(python, site, gained, project, folder / "cache")


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    """Templates, tables, pins and `py.typed` travel; evidence does not."""
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not {"__pycache__", "evidence"} & set(path.parts)
    }
    expected = {name if name.startswith("paritybit/") else f"paritybit/{name}" for name in expected}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.startswith("paritybit/")} == expected
    assert {name.split("/")[0] for name in names} == {
        "paritybit",
        f"paritybit-{__version__}.dist-info",
    }


def test_an_installed_paritybit_tests_and_replays_outside_a_checkout(
    installed: Installed,
) -> None:
    """The project holds a folder `harness` that cannot be imported. Only --out is written to."""
    assert installed.gained == {"paritybit", f"paritybit-{__version__}.dist-info"}
    before = installed.files()
    script = installed.python.with_name("paritybit")
    assert run([script, "--version"], installed.project) == (OK, f"paritybit {__version__}\n")
    words = ("--bug", "swa_pad@decode", "--device", "cpu", "--", "-n", "1", "-k", "hunt")
    code, said = installed.paritybit("regress", *words)
    assert code == OK, said
    latest = installed.project / "paritybit-out" / "latest"
    rows = json.loads((latest / "run.json").read_text())["bugs"]
    assert {row["status"] for row in rows} == {"caught"}, said
    assert (latest / "index.html").is_file()
    code, said = installed.paritybit("replay", str(CORPUS / "swa_pad@decode.json"))
    assert code == FINDING and "kv_parity" in said, said
    assert {path.name for path in installed.project.iterdir()} == {"harness", "paritybit-out"}
    assert installed.files() == before


def test_an_installed_paritybit_tests_a_release_of_an_engine(
    request: pytest.FixtureRequest,
) -> None:
    require_asked()
    installed: Installed = request.getfixturevalue("installed")
    before = installed.files()
    code, said = installed.paritybit("engine", RELEASE)
    if code == CANNOT_RUN:
        pytest.skip(f"no release could be fetched: {said.strip()}")
    assert code == OK, said
    engine = ["--engine", f"sglang=={RELEASE}", "--settings", "decode graphs", "--seconds", "60"]
    code, said = installed.paritybit("watch", *engine, "--device", "cpu")
    # 0.5.12 is older than the fix sgl#26292: lists keep the slots of padded rows.
    assert code == FINDING, said
    assert "lists slot" in said and "for a padded row" in said
    assert {path.name for path in installed.project.iterdir()} == {"harness", "paritybit-out"}
    assert installed.files() == before


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_release_has_one_version_in_tag_wheel_changelog_and_documents(
    tree: Path, tmp_path: Path
) -> None:
    """A malformed version, uncommitted changes and a tag that exists change nothing."""
    clone, environment = tmp_path / "clone", {"PYTHON": sys.executable}
    for part in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{part}_NAME": "Somebody", f"GIT_{part}_EMAIL": "somebody@localhost"}
    shutil.copytree(tree, clone)
    shutil.copytree(ROOT / ".ci", clone / ".ci")
    for name in ("CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, clone)
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "A"]):
        assert run(["git", *words], clone, **environment)[0] == 0
    release = [".ci/release"]
    code, said = run([*release, "nine"], clone, **environment)
    assert (code, "such as 0.5.0" in said) == (2, True), said

    code, said = run([*release, "98.7.6"], clone, **environment)
    assert code == 0, said
    assert run(["git", "tag"], clone) == (0, "v98.7.6\n")
    assert run(["git", "status", "--porcelain"], clone) == (0, "")
    assert [one.name for one in (clone / "dist").iterdir()] == ["paritybit-98.7.6-py3-none-any.whl"]
    assert "## [Unreleased]\n\n## [98.7.6] - " in (clone / "CHANGELOG.md").read_text()
    pages = "".join(page.read_text() for page in (clone / "docs").glob("*.md"))
    assert "uses: ACCOUNT/paritybit@v98.7.6\n" in pages
    assert f"@v{__version__}" not in pages

    code, said = run([*release, "98.7.6"], clone, **environment)
    assert (code, said) == (2, "the tag v98.7.6 exists\n")
    (clone / "README.md").write_text("changed")
    assert run([*release, "98.7.7"], clone, **environment)[0] == 2
