"""The line of an engine that fills an input, learned while the engine prepares a forward."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.watch import lines
from paritybit.watch.lines import Lines

SOURCE = """\
import torch

class Runner:
    def __init__(self):
        self.copied, self.viewed = torch.zeros(8), torch.zeros(8, dtype=torch.int32)
        self.by_hand, self.deep = self.viewed.numpy(), torch.zeros(8)
        self.untouched, self.listed = torch.zeros(8), torch.zeros(8)

    def prepare(self, n):
        self.copied.zero_()
        self.copied[:4].copy_(
            torch.full((4,), n))
        self.by_hand[0] = n
        copy(self.deep, n)
        fresh = torch.empty(4)
        fill(fresh,
             n)
        unrelated = fresh.clone()
        self.held = torch.full((4,), n)
        several = [self.listed]
        add(several, n)
        return fresh, unrelated

    def step(self, n, forward):
        self.several = self.draft(n, forward)
        self.verify(n)
        forward("verify")

    def draft(self, n, forward):
        self.copied.fill_(n)
        forward("draft")

    def wrapped(self, *args, **kwargs):
        self.verify(*args, **kwargs)

    def verify(self, n):
        self.copied.fill_(n)
        self.deep.copy_(torch.full((8,), n))
        self.untouched[:4] = 0
        copy(
            self.listed,
            0)

    def fill(self, batch, n):
        batch.deep = torch.full((8,), n)
        slots = [self.deep]
        add(slots, n)

def add(buffers, n):
    torch._foreach_add_(buffers, n)

def filled(runner, n):
    runner.prepare(n)

def copy(buffer, n):
    buffer.add_(n)

def fill(tensor, n):
    tensor.fill_(n)
"""


@pytest.fixture
def engine(tmp_path: Path) -> ModuleType:
    """An engine's module, in a folder with the name of the package."""
    path = tmp_path / "engine" / "runner.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("engine_runner", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs_of(runner: Any, fresh: torch.Tensor) -> dict[str, torch.Tensor]:
    named = {
        name: getattr(runner, name) for name in ("copied", "viewed", "deep", "listed", "untouched")
    }
    return {**named, "fresh 0": fresh, "held": runner.held}


def prepared(learned: Lines, runner: Any, times: int) -> None:
    """Prepare some forwards, as a connector does."""
    for number in range(1, times + 1):
        with learned.learning():
            fresh, _ = runner.prepare(float(number))
        learned.note("batch", inputs_of(runner, fresh))
        learned.done()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("copied", 11),
        ("viewed", 13),  # Through numpy, as torch does not see it.
        ("deep", 14),  # The innermost line that names it.
        ("fresh 0", 16),
        ("held", 19),
        ("listed", 20),  # The line that passes it on.
        ("untouched", None),
    ],
)
def test_the_line_is_the_one_that_fills_the_input(
    engine: ModuleType, name: str, line: int | None
) -> None:
    learned = Lines("engine")
    prepared(learned, engine.Runner(), 3)
    assert learned.of("batch", name)[0] == (line and f"engine/runner.py:{line}")


def test_the_callers_of_a_line_are_known_too(engine: ModuleType) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    for number in range(1, 4):
        with learned.learning():
            engine.filled(runner, float(number))
        learned.note("batch", {"viewed": runner.viewed})
        learned.done()
    line = 1 + SOURCE[: SOURCE.index("runner.prepare(n)")].count("\n")
    assert learned.of("batch", "viewed") == (
        "engine/runner.py:13",
        f"in Runner.prepare; called at engine/runner.py:{line} in filled",
    )


def test_an_input_of_the_engine_is_not_kept_alive(engine: ModuleType) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    prepared(learned, runner, 2)
    (memory,) = [one.storage for key, one in learned.inputs.items() if one and key[2] == "deep"]
    assert not memory.expired()
    del runner
    assert memory.expired()


def test_a_debugger_is_left_alone(engine: ModuleType) -> None:
    learned, before = Lines("engine"), sys.gettrace()

    def debugger(*_: Any) -> Callable[..., Any] | None:
        return None

    sys.settrace(debugger)
    try:
        prepared(learned, engine.Runner(), 3)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)
    assert learned.known == {}


def test_an_error_while_following_ends_it_and_not_the_engine(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    prepared(learned, runner, 1)
    monkeypatch.setattr(learned, "_look", lambda: 1 / 0)
    with learned.learning():
        runner.prepare(7.0)
        assert sys.gettrace() is None
    assert runner.by_hand[0] == 7


def line_of(text: str, times: int = 1) -> str:
    """Return the line of the engine on which a text occurs for the n-th time."""
    before = text.join(SOURCE.split(text)[:times])
    return f"engine/runner.py:{1 + before.count(chr(10))}"


def test_each_forward_of_a_batch_has_its_own_lines(engine: ModuleType) -> None:
    learned, runner = Lines("engine"), engine.Runner()

    def forward(kind: str) -> None:
        learned.stop()
        names = ("copied", "deep") if kind == "verify" else ("copied",)
        learned.note(kind, {name: getattr(runner, name) for name in names})
        runner.deep.add_(1)  # The model itself changes it, which no line of the engine did.
        learned.done()

    for number in range(1, 4):
        with learned.learning():
            runner.step(float(number), forward)
    assert sys.gettrace() is None
    assert learned.of("draft", "copied")[0] == line_of("self.copied.fill_", 1)
    assert learned.of("verify", "deep")[0] == line_of("self.deep.copy_")
    # The draft has filled the same memory with the same values, which is no line of this forward.
    assert learned.of("verify", "copied") == (
        line_of("self.copied.fill_", 2),
        f"in Runner.verify; {lines.PREPARED}; called at {line_of('self.verify(n)')} in Runner.step",
    )
    assert not learned.followed


@pytest.mark.parametrize(
    ("name", "line"),
    [("untouched", "self.untouched[:4] = 0"), ("listed", "self.listed,"), ("viewed", None)],
)
def test_an_input_that_keeps_its_bytes_has_the_line_that_names_it(
    engine: ModuleType, name: str, line: str | None
) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    for _ in range(3):
        with learned.learning():
            runner.wrapped(0.0)
        learned.note("batch", {name: getattr(runner, name)})
        learned.done()
    found, why = learned.of("batch", name)
    assert found == (line and line_of(line))
    said = f"in Runner.verify; {lines.PREPARED}"  # One that passes on any arguments is no caller.
    assert why == (said if line else "no line changed or named it before 2 forwards")


def test_all_lines_that_change_an_input_are_named(engine: ModuleType) -> None:
    learned = Lines("engine")
    prepared(learned, engine.Runner(), 3)
    also = "also written at engine/runner.py:10 in Runner.prepare"
    assert learned.of("batch", "copied")[1] == f"in Runner.prepare; {also}"


def test_a_line_for_another_kind_of_forward_is_named_as_such(engine: ModuleType) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    for number in range(1, 7):
        learned.forward = "decode" if number % 2 else "extend"
        with learned.learning():
            getattr(runner, "verify" if number % 2 else "prepare")(float(number))
        names = ("deep", "copied", "viewed")[: 2 + (learned.forward == "extend")]
        learned.note("batch", {name: getattr(runner, name) for name in names})
        learned.done()
    assert learned.of("batch", "copied")[0] == line_of("self.copied[:4].copy_(")
    learned.forward = "decode"
    assert learned.of("batch", "copied")[0] == line_of("self.copied.fill_", 2)
    line, via = learned.of("batch", "viewed")
    assert line == line_of("self.by_hand[0] = n")
    assert via == "in Runner.prepare; that is before extend forwards"


COMPUTED = """
class Runner:
    def __init__(self, buffer):
        self.buffer = buffer

    def prepare(self, n):
        unrelated = self.other(n)
        ends, order = self.sorted(
            self.first(n))
        self.count = self.other(n)
        self.buffer[:2].copy_(
            ends)
        return unrelated

    def first(self, n):
        return n + 1

    def sorted(self, n):
        return torch.full((2,), n), n

    def other(self, n):
        return n
"""


def test_a_cause_names_the_functions_whose_results_its_line_uses(tmp_path: Path) -> None:
    path = tmp_path / "engine" / "computed.py"
    path.parent.mkdir()
    path.write_text(COMPUTED)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(COMPUTED, path, "exec"), scope)
    learned, buffer = Lines("engine"), torch.zeros(4)
    runner = scope["Runner"](buffer)
    for number in range(1, 4):
        with learned.learning():
            runner.prepare(float(number))
        learned.note("batch", {"buffer": buffer})
        learned.done()
    source, via = learned.of("batch", "buffer")
    assert (source, via) == ("engine/computed.py:11", "in Runner.prepare")
    cause = {"what": "buffer", "source": source, "via": via}
    told = learned.with_results(cause)["via"]
    assert told == "in Runner.prepare; with results of Runner.sorted, Runner.first"
    for other in ({"what": "x"}, {**cause, "source": "engine/computed.py:7"}):
        assert learned.with_results(other) == other


def test_an_input_without_a_line_names_the_line_of_its_neighbour(engine: ModuleType) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    rebound = torch.zeros(4)
    for number in range(1, 5):
        with learned.learning():
            runner.verify(float(number))
        given = {"kv_copied": runner.copied, "deep": runner.deep, "kv_offsets": rebound}
        learned.note("batch", given)
        learned.done()
    line, via = learned.of("batch", "kv_offsets")
    assert line is None
    filled = f"kv_copied is filled at {line_of('self.copied.fill_', 2)} in Runner.verify"
    assert via == f"no line changed or named it before 3 forwards; {filled}"


def test_a_line_with_the_name_of_another_tensor_does_not_fill_the_input(engine: ModuleType) -> None:
    learned, runner = Lines("engine"), engine.Runner()
    for number in range(1, 4):
        with learned.learning():
            runner.fill(SimpleNamespace(), float(number))
        learned.note("batch", {"deep": runner.deep})
        learned.done()
    assert learned.of("batch", "deep")[0] == line_of("slots = [self.deep]")
