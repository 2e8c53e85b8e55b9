"""What a process of a command imports: the sanitizer, and nothing else of this tree."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paritybit import __version__
from paritybit.compat import tomllib
from paritybit.inject import ENTRY_POINTS, environment_with, prepare
from properties.support.harness.command_line import FINDING, python
from properties.support.places import ROOT

TOY = ROOT / "properties" / "watch" / "toy"


@pytest.fixture
def injected(tmp_path: Path) -> Path:
    """The folder for PYTHONPATH."""
    folder = tmp_path / "injected"
    folder.mkdir()
    prepare(folder)
    return folder


def said(folder: Path, code: str, cwd: Path, *, watched: bool = False, path: str = "") -> str:
    """Return what a script prints in a process with the folder on its path."""
    before = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    variables = environment_with(before, folder, f'{{"out": "{cwd}"}}')
    if not watched:
        del variables["PARITYBIT_WATCH"]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_entry_points_are_those_of_an_installed_package(injected: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == ENTRY_POINTS
    code = (
        "from importlib.metadata import entry_points, version\n"
        f"names = {list(ENTRY_POINTS)!r}\n"
        "print(version('paritybit'), [[p.value for p in entry_points(group=n)] for n in names])\n"
        "print([bool(p.load()) for n in names for p in entry_points(group=n)])"
    )
    values = [list(members.values()) for members in ENTRY_POINTS.values()]
    loaded = [True for members in values for _ in members]
    assert said(injected, code, tmp_path) == f"{__version__} {values}\n{loaded}"


@pytest.mark.parametrize("watched", [False, True])
def test_a_sitecustomize_of_the_user_runs_too(
    injected: Path, tmp_path: Path, watched: bool
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.theirs = __file__")
    code = "import sys, sitecustomize as s; print(sys.theirs, s.__file__, 'torch' in sys.modules)"
    theirs_file = theirs / "sitecustomize.py"
    found = said(injected, code, tmp_path, watched=watched, path=str(theirs))
    assert found == f"{theirs_file} {theirs_file} False"
    assert not list(tmp_path.glob("process-*"))


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, None), ("", ""), ("mine", "mine,paritybit"), ("a,b", "a,b,paritybit")],
)
def test_a_list_of_plugins_is_extended(before: str | None, after: str | None) -> None:
    inherited = {} if before is None else {"SGLANG_PLUGINS": before}
    assert environment_with(inherited, Path("x"), "{}").get("SGLANG_PLUGINS") == after


SERVE = """
import toyengine

def fill(graph, batch):
    for name, value in batch.items():
        if name != "loc_swa":
            graph.static[name].copy_(graph.capture[name])
        graph.static[name][: len(value)] = value

toyengine.Graph.fill = fill
engine = toyengine.Engine()
one = engine.add("one", [3, 1, 4, 1, 5])
engine.decode()
engine.add("two", [9, 2, 6, 5, 3, 5])
three = engine.add("three", [8, 9, 7])
for _ in range(3):
    engine.decode()
for request in (one, three):
    engine.finish(request)
    engine.decode()
"""


def test_an_engine_that_another_package_connects_is_watched(tmp_path: Path) -> None:
    """It has no plugins: sitecustomize attaches its connector when it is imported."""
    script = tmp_path / "serve.py"
    script.write_text(SERVE)
    path = os.pathsep.join(map(str, (ROOT, TOY)))
    command = ("--out", str(tmp_path / "out"), "--", sys.executable, str(script))
    done = python("-m", "paritybit", "watch", *command, variables={"PYTHONPATH": path})
    assert done.returncode == FINDING, done.stderr
    assert "stray write" in done.stderr
    assert "loc_swa" in done.stderr
