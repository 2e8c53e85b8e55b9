"""A watcher, and the toy engine."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from paritybit.watch import attach, journal
from paritybit.watch.settings import VARIABLE, Settings
from properties.support.watching import Scene

THREADS = torch.get_num_threads()
TOY = Path(__file__).parent / "toy"


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A watcher with all checks, unless a test sets it otherwise."""
    made = Scene(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture
def toy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ModuleType]:
    """The toy engine's module, imported while the sanitizer is on. Its journal is in `tmp_path`.

    A parameter is an edit of the engine's source: what it has once, and what takes its place.
    """
    folder = shutil.copytree(TOY, tmp_path / "toy")
    source = folder / "toyengine" / "__init__.py"
    old, new = getattr(request, "param", ("", ""))
    source.write_text(source.read_text().replace(old, new))
    monkeypatch.setenv(VARIABLE, Settings(str(tmp_path)).text())
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(journal, "_OPEN", [])
    monkeypatch.setattr(attach, "_CONNECTED", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    torch.set_num_threads(1)  # Tiny tensors: more threads only wait for one another.
    attach.install()
    toyengine = importlib.import_module("toyengine")

    yield toyengine
    torch.set_num_threads(THREADS)
    for name in ("toyengine", "toyengine_paritybit"):
        del sys.modules[name]
