"""What is wrapped, what happens if the connector fails, and that nothing is if it is off."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paritybit.connectors import hooking
from paritybit.connectors.sglang import hooks as sglang
from paritybit.connectors.sglang.engine import SglangEngine
from paritybit.connectors.transformers import hooks as transformers
from paritybit.connectors.vllm import hooks as vllm
from paritybit.connectors.vllm.engine import VllmEngine
from paritybit.testing.replays import InMemory
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings
from properties.connectors.parts import hooked


def test_a_hook_gets_the_arguments_that_it_names_and_the_engine_gets_all() -> None:
    """A new argument of the engine, positional or named, changes no verdict."""

    def original(*given: int, **named: int) -> Any:
        return given, named

    def hook(original: hooking.Call, first: int, *, last: int = 0) -> Any:
        return first, last, original(), original(3)

    got = hooking.guarded(hook)(original, 1, 2, last=8, more=9)
    assert got == (1, 8, ((1, 2), {"last": 8, "more": 9}), ((3,), {}))


def test_a_hook_that_returns_nothing_gives_the_first_result_of_the_engine() -> None:
    """The engine's function is called once, if the hook does not call it itself."""
    numbers = iter(range(9))
    first, again = (lambda original: None), (lambda original: [original(), original()].clear())
    assert hooking.guarded(first)(numbers.__next__) == 0
    assert hooking.guarded(again)(numbers.__next__) == 1
    assert next(numbers) == 3


def test_a_hook_runs_before_or_after_the_call_as_its_parameters_say() -> None:
    order = list[Any]()

    def original(given: int) -> int:
        order.append(given)
        return given + 1

    for hook in (lambda given: order.append("before"), lambda result, _: order.append(result)):
        assert hooking.guarded(hook)(original, 1) == 2
    assert order == ["before", 1, 1, 2]


def test_only_what_a_path_itself_defines_is_wrapped() -> None:
    """An inherited method, or a class that another module shows too, would be wrapped twice."""
    assert hooking.defined("torch.cuda.CUDAGraph.replay")
    assert hooking.defined("paritybit.connectors.vllm.engine.VllmEngine.execute")
    assert not hooking.defined("paritybit.connectors.vllm.engine.VllmEngine.frees")
    assert not hooking.defined("paritybit.watch.attach.EntryPoint.load")
    assert not hooking.defined("paritybit.nowhere.Class.run")
    assert hooking.defined("paritybit.connectors.vllm.drafting.draft_layers")
    assert not hooking.defined("paritybit.connectors.vllm.sampling.place_of")
    assert not hooking.defined("paritybit.connectors.vllm.drafting.DRAFTED")


def test_a_function_is_wrapped_in_each_module_that_imported_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, other = ModuleType("owner"), ModuleType("other")
    vars(owner)["run"] = vars(other)["run"] = lambda: 1
    monkeypatch.setitem(sys.modules, "other", other)
    hooking.wrap(owner, "run", lambda original: original() + 1)
    assert owner.run() == other.run() == 2


def fail_before(original: Any, value: int) -> int:
    raise KeyError(value)


def fail_after(original: Any, value: int) -> int:
    original(value)
    raise KeyError(value)


def leave(original: Any, value: int) -> int:
    sys.exit(value)


@pytest.mark.parametrize("method", [fail_before, fail_after, leave])
def test_an_error_of_the_connector_is_said_and_the_engine_goes_on(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "process-1.jsonl")
    monkeypatch.setattr(hooking, "of_process", lambda: journal)
    calls: list[int] = []

    def original(value: int) -> int:
        calls.append(value)
        return value + 1

    assert hooking.guarded(method)(original, 1) == 2
    assert calls == [1]
    assert journal.file is not None
    journal.file.close()
    assert "the connector failed: " in journal.path.read_text()


def test_an_error_of_the_engine_is_raised_once() -> None:
    calls: list[int] = []

    def original(value: int) -> int:
        calls.append(value)
        raise ValueError("the engine's own")

    with pytest.raises(ValueError, match="own"):
        hooking.guarded(lambda original, value: original(value))(original, 1)
    assert calls == [1]


@pytest.mark.parametrize(
    ("module", "kind", "name"),
    [
        (sglang, SglangEngine, "loop"),
        (vllm, VllmEngine, "loop"),
        (transformers, transformers.Hooks, "failed"),
    ],
)
def test_an_error_that_ends_the_loop_of_an_engine_is_a_finding(
    module: Any, kind: Any, name: str
) -> None:
    journal = InMemory(Path(), counts={"forwards": 9, "forwards: decode": 9})
    engine, scope = kind("0", journal, Settings("")), dict[str, Any]()
    code = "def step():\n    raise ValueError('no room')\n"
    exec(compile(code, f"/e/{kind.package}/a.py", "exec"), scope)
    with pytest.raises(ValueError, match="no room") as error:
        hooked(engine.loop, scope["step"])
    if name == "failed":
        journal.found.clear()
        hooked(engine.failed, lambda *_: None, None, error.value)
    assert [one.check for one in journal.found] == ["engine error"]
    assert name in module.TARGETS
