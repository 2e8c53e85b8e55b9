"""What replaces an engine's surroundings never answers silently for an undeclared name."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paritybit.engines.loading import message
from paritybit.engines.stubs import (
    Bag,
    PartMissingError,
    StandInUsedError,
    StubFinder,
    UndeclaredError,
)

STUBBED = "stubbed_for_a_test"

USES = f"""
from {STUBBED} import Config, Model, ready, register
from {STUBBED}.declared import answer

made = Config(size=3)
path = Model.parts.first
seen = 1 if ready else 2, Model == Config, [*Model], answer()

@register
def decorated(value):
    return value

class Own(Model):
    def __init__(self):
        super().__init__()

def calls():
    return path(1)
"""
"""A module that uses a stub as an engine's modules do while they are imported."""


def test_a_setting_that_nobody_declared_names_itself() -> None:
    made = Bag({"page_size": 4}, "server_args")
    assert made.page_size == 4
    with pytest.raises(UndeclaredError, match="which is not declared"):
        _ = made.attention_sinks
    assert getattr(made, "sink_tokens", 7) == 7  # An engine may ask with a default.


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module USES, imported with stubs."""
    finder = StubFinder((STUBBED,), answers={f"{STUBBED}.declared": {"answer": lambda: 5}})
    (tmp_path / "importing_for_a_test.py").write_text(USES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield importlib.import_module("importing_for_a_test")
    for name in [name for name in sys.modules if "_for_a_test" in name]:
        del sys.modules[name]


def test_a_stub_can_be_called_and_subclassed_while_modules_are_imported(imported: Any) -> None:
    assert isinstance(imported.made, imported.Config)
    assert issubclass(imported.Own, imported.Model)
    assert imported.seen == (1, False, [], 5)


@pytest.mark.parametrize(
    ("used", "name"),
    [
        ("Config", "Config"),
        ("calls", "Model.parts.first"),
        ("Own", "Own"),
        ("made", "Config"),
    ],
)
def test_a_stub_that_is_called_later_names_itself(imported: Any, used: str, name: str) -> None:
    with pytest.raises(StandInUsedError) as raised:
        getattr(imported, used)()
    assert isinstance(raised.value, PartMissingError)
    assert message(raised.value).endswith(f"{name}, which is a stub")
