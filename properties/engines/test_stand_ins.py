"""What stands in for an engine's surroundings never answers silently for what nobody declared."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paritybit.engines.bags import Bag
from paritybit.engines.loading import message
from paritybit.engines.missing import (
    PartMissingError,
    StandInUsedError,
    UndeclaredError,
)
from paritybit.engines.stubs import StubFinder

STUBBED = "stubbed_for_a_test"


def test_a_setting_that_nobody_declared_names_itself() -> None:
    made = Bag({"page_size": 4}, "server_args")
    assert made.page_size == 4
    with pytest.raises(UndeclaredError) as raised:
        _ = made.attention_sinks
    assert message(raised.value) == (
        "the engine reads server_args.attention_sinks, which is not declared"
    )
    assert isinstance(raised.value, PartMissingError)
    assert getattr(made, "sink_tokens", 7) == 7  # An engine that asks with a default gets it.


@pytest.fixture
def finder() -> StubFinder:
    """A finder of one stub."""
    return StubFinder((STUBBED,), answers={f"{STUBBED}.declared": {"answer": lambda: 5}})


@pytest.fixture
def stubbed(finder: StubFinder) -> Iterator[Any]:
    """A stubbed module, imported."""
    sys.meta_path.insert(0, finder)
    yield importlib.import_module(STUBBED)
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.startswith(STUBBED)]:
        del sys.modules[name]


@pytest.fixture
def imported(stubbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that uses a stub as an engine's modules do while they are imported."""
    name = "importing_for_a_test"
    (tmp_path / f"{name}.py").write_text(
        f"""
from {STUBBED} import Config, Model, ready, register
from {STUBBED}.deep import option

made = Config(size=3)
path = Model.parts.first
chosen = 1 if ready else 2
other = Model == Config
listed = [*Model]

@register
def decorated(value):
    return value

@option("name")
def optional(value):
    return value

class Own(Model):
    def __init__(self):
        super().__init__()

def lazily():
    import {name}_later
    return {name}_later.made

def calls():
    return path(1)
"""
    )
    (tmp_path / f"{name}_later.py").write_text(f"import {STUBBED}\nmade = {STUBBED}.Late()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    for loaded in (name, f"{name}_later"):
        sys.modules.pop(loaded, None)


def test_a_stand_in_can_be_called_and_subclassed_while_modules_are_imported(
    imported: Any, stubbed: Any
) -> None:
    assert isinstance(imported.made, stubbed.Config)
    assert issubclass(imported.Own, stubbed.Model)
    assert (imported.chosen, imported.other, imported.listed) == (1, False, [])
    assert imported.optional(3) == 3
    assert isinstance(imported.lazily(), stubbed.Late)


def test_a_stand_in_that_is_called_later_names_itself(imported: Any, stubbed: Any) -> None:
    for call, name in (
        (stubbed.Config, "Config"),
        (imported.calls, "Model.parts.first"),
        (imported.Own, "Own"),
        (lambda: imported.decorated(3), "register"),
        (lambda: imported.made(3), "Config"),
    ):
        with pytest.raises(StandInUsedError) as raised:
            call()
        assert name in message(raised.value)
    with pytest.raises(PartMissingError) as missing:
        stubbed.Config()
    assert message(missing.value) == f"the engine called {STUBBED}.Config, which is a stub"


def test_what_is_declared_of_a_stub_answers(finder: StubFinder) -> None:
    spec = finder.find_spec(f"{STUBBED}.declared")
    assert spec is not None
    module: Any = finder.create_module(spec)
    finder.exec_module(module)
    assert module.answer() == 5
    with pytest.raises(StandInUsedError):
        module.other()
