"""What stands in for an engine's surroundings never answers silently for what nobody declared."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paritybit.engines.bags import declared_in, settings
from paritybit.engines.loading import message
from paritybit.engines.missing import (
    PartMissingError,
    StandInUsedError,
    UndeclaredError,
)
from paritybit.engines.stubs import StubFinder
from paritybit.explore.sglang.host import (
    Host,
    StubConfig,
    StubGroups,
    server_arguments,
)
from paritybit.explore.sglang.loading import ABSENT, ANSWERS, STUBS
from paritybit.explore.sglang.settings import OFF

STUBBED = "stubbed_for_a_test"


def bag(label: str = "server_args", **values: Any) -> StubConfig:
    """Return a bag of some values."""
    return StubConfig(values, label)


def test_a_setting_that_nobody_declared_names_itself() -> None:
    made = bag()
    with pytest.raises(UndeclaredError) as raised:
        _ = made.attention_sinks
    assert message(raised.value) == (
        "the engine reads server_args.attention_sinks, which is not declared"
    )
    assert isinstance(raised.value, PartMissingError)


def test_an_engine_that_asks_with_a_default_gets_it() -> None:
    made = bag()
    assert not hasattr(made, "attention_sinks")
    assert getattr(made, "sink_tokens", 7) == 7


def test_what_is_declared_or_off_answers() -> None:
    made = bag(page_size=4, enable_lora="declared")
    assert made.page_size == 4
    assert made.enable_lora == "declared"
    assert made.disable_cuda_graph is False
    assert made.dllm_algorithm is None


@pytest.mark.parametrize("label", OFF)
def test_what_is_off_is_off_in_its_own_bag_alone(label: str) -> None:
    made = bag(label)
    assert all(not getattr(made, name) for name in OFF[label])
    elsewhere = bag("no_bag_of_an_engine")
    assert not any(hasattr(elsewhere, name) for name in OFF[label])


def test_what_a_file_declares_is_read_by_its_words(tmp_path: Path) -> None:
    file = tmp_path / "declared.toml"
    file.write_text(
        """
        stubs = ["module"]
        [off.part]
        None = ["nothing"]
        False = ["no", "never"]
        1 = ["one"]
        "False()" = ["asked"]
        word = "auto"
        inner.0 = ["zero"]
        """
    )
    found = declared_in(file)
    part = found["off"]["part"]
    assert found["stubs"] == ["module"]
    assert (part.pop("inner").zero, part.pop("asked")("anything")) == (0, False)
    assert part == {"nothing": None, "no": False, "never": False, "one": 1, "word": "auto"}
    with pytest.raises(ValueError, match="declared twice: no"):
        settings({"None": ["no"], "False": ["no"]})


def test_groups_of_settings_are_one_bag_and_hold_others_within_a_scope() -> None:
    made = StubGroups({"page_size": 4}, "config")
    assert made.moe is made
    with pytest.raises(RuntimeError), made.override(page_size=1):
        assert made.page_size == 1
        raise RuntimeError
    assert made.page_size == 4
    with pytest.raises(UndeclaredError, match=r"the engine reads config\.kv_size,"):
        _ = made.kv_size


@pytest.fixture
def finder() -> StubFinder:
    """A finder of one stub."""
    return StubFinder((STUBBED,), answers=ANSWERS)


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


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (bool, "asked for the truth of"),
        (lambda used: used == "ready", "compared something with"),
        (lambda used: "ready" in ("set", used), "compared something with"),
        (list, "listed"),
    ],
)
def test_a_stand_in_says_nothing_of_itself_once_modules_are_imported(
    stubbed: Any, use: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(StandInUsedError, match=rf"the engine {said} {STUBBED}\.READY, which"):
        use(stubbed.READY)


def test_what_is_declared_of_a_stub_answers(
    finder: StubFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, f"{STUBBED}.declared", {"answer": lambda: 5})
    spec = finder.find_spec(f"{STUBBED}.declared")
    assert spec is not None
    module: Any = finder.create_module(spec)
    finder.exec_module(module)
    assert module.answer() == 5
    with pytest.raises(StandInUsedError):
        module.other()


def test_every_declared_answer_and_absence_is_of_a_stub() -> None:
    names = (*ANSWERS, *ABSENT)
    assert all(any(f"{name}.".startswith(f"{stub}.") for stub in STUBS) for name in names)


class NoEngine:
    """An engine without any part but its word for no speculation."""

    def fill(self, module: str, values: dict[str, Any]) -> None:
        """Set nothing."""

    def module(self, name: str) -> Any:
        """Have no module."""
        raise PartMissingError(name)

    def part(self, *places: str) -> Any:
        """Return the enumeration that is asked for."""
        return SimpleNamespace(NONE="none")


def test_settings_are_of_one_rank_and_name_what_they_lack() -> None:
    engine: Any = NoEngine()
    host = Host(engine, server_arguments((2,), (4,), 1), "cpu")
    assert (host.parallel.tp_size, host.arguments.tp_size) == (1, 1)
    assert host.arguments.device == host.bag.device == "cpu"
    for bag, name in (
        (host.parallel, "parallel"),
        (host.arguments.cuda_graph_config.decode, "cuda_graph"),
        (host.bag, "config"),
    ):
        with pytest.raises(UndeclaredError, match=rf"the engine reads {name}\.unheard_of,"):
            _ = bag.unheard_of
