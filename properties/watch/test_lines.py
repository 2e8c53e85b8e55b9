"""The lines and the functions of an engine that a finding names."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.watch import lines as module
from paritybit.watch import stacks
from paritybit.watch.lines import Lines
from paritybit.watch.stacks import Stack, described, stack
from paritybit.watch.statements import module_of

SOURCE = """\
import torch

class Runner:
    def __init__(self, pool):
        self.whole, self.pool, self.order = torch.zeros(16), pool, None
        self.ends, self.ids = self.whole[:8], self.whole[8:]
        self.mapping = torch.zeros(4, dtype=torch.int64)

    def prepare(self, n):
        self.reset()
        unrelated = self.pool.count(n)
        ends, _ = self.sorted(
            self.first(n))
        self.ends[:2].copy_(
            ends)
        fill(self.ids,
             n)
        found = []
        self.collect(n, found)
        self.mapping = torch.tensor(found)
        return unrelated

    def reset(self):
        self.whole.zero_()

    def first(self, n):
        return n + 1

    def sorted(self, n):
        return torch.full((2,), n), n

    def collect(self, n, found):
        for part in [found]:
            part.extend(self.pool.slots(n))

    def wrapped(self, *args, **kwargs):
        self.prepare(*args, **kwargs)

class Pool:
    def __init__(self):
        self.free = [3]

    def slots(self, n):
        return [self.free[0]] * int(n)

    def count(self, n):
        return n

    def give_back(self, slot):
        self.free.append(slot)

    def tidy(self):
        self.free.sort()

def fill(tensor, n):
    tensor.fill_(n)

def scatter(out_ptr, ids_ptr, n):
    at = out_ptr + tl.arange(0, n)
    tl.store(at, tl.load(ids_ptr + at))

def run(launch, kernel, out, ids):
    launch(kernel, (out, ids), {"n": 4})

def plan(runner, n):
    runner.wrapped(n)
"""


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, Any]:
    """The functions of the pretended engine, in a package of that name."""
    stacks.engine_file.cache_clear()
    module_of.cache_clear()
    scope: dict[str, Any] = {}
    path = tmp_path / "engine" / "runner.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    exec(compile(SOURCE, path, "exec"), scope)
    return scope


def test_an_engine_may_be_a_module_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks.engine_file.cache_clear()
    path = str(tmp_path / "mini.py")
    assert stacks.engine_file(path, "mini") is None  # Another file may have this name.
    monkeypatch.setitem(sys.modules, "mini", SimpleNamespace(__file__=path))
    stacks.engine_file.cache_clear()
    assert stacks.engine_file(path, "mini") == "mini.py"
    assert stacks.engine_file(str(tmp_path / "mini/mini.py"), "mini") == "mini/mini.py"


def brief(text: str) -> str:
    """Return the line of the engine on which a text occurs, without the folder."""
    return place(text).removeprefix("engine/")


def place(text: str) -> str:
    """Return the line of the engine on which a text occurs."""
    return f"engine/runner.py:{1 + SOURCE[: SOURCE.index(text)].count(chr(10))}"


def prepared(lines: Lines, engine: Mapping[str, Any], times: int = 3) -> Any:
    """Prepare some forward passes, as a connector does, and return the runner."""
    runner = engine["Runner"](engine["Pool"]())
    for number in range(1, times + 1):
        lines.done()
        runner.pool.tidy()
        if number == times:
            runner.pool.give_back(4)
        with lines.learning():
            engine["plan"](runner, float(number))
        lines.begin("decode")
        lines.note("batch", {"ends": runner.ends, "ids 0": runner.ids, "mapping": runner.mapping})
    return runner


@pytest.mark.parametrize(
    ("name", "line", "more"),
    [
        ("ends", "self.ends[:2]", f"also written at {brief('self.whole.zero_')} in Runner.reset"),
        ("ids 0", "fill(self.ids,", f"which calls {brief('tensor.fill_')} in fill"),
        ("ids 0", "fill(self.ids,", f"called at {brief('runner.wrapped')} in plan"),
        ("mapping", "self.mapping = torch.t", f"called at {brief('runner.wrapped')} in plan"),
    ],
)
def test_an_input_has_the_line_that_wrote_it_and_those_around_it(
    engine: dict[str, Any], name: str, line: str, more: str
) -> None:
    lines = Lines("engine")
    prepared(lines, engine)
    source, via = lines.of("batch", name)
    assert source == place(line)
    assert more in str(via)


def test_a_line_for_another_kind_of_forward_is_named_as_such(engine: dict[str, Any]) -> None:
    lines = Lines("engine")
    prepared(lines, engine)
    lines.forward = "extend"
    assert "that is before decode forwards" in str(lines.of("batch", "ends")[1])
    lines.note("batch", {"other": torch.zeros(2)})
    assert lines.of("batch", "other") == (None, "no line was seen that writes it")
    assert lines.of("batch", "unknown") == (None, None)


def test_an_input_has_the_kernel_that_stores_to_it(engine: dict[str, Any]) -> None:
    lines, given = Lines("engine"), {"out": torch.zeros(4), "ids": torch.zeros(4)}
    kernel = SimpleNamespace(fn=engine["scatter"], arg_names=["out_ptr", "ids_ptr", "n"])
    with lines.learning():
        engine["fill"](given["ids"], 1)
        engine["run"](lines.fills.launched, kernel, *given.values())
    lines.begin("decode")
    lines.note("batch", given)
    source, via = lines.of("batch", "out")
    assert source == place("launch(kernel")
    assert via == f"in run; which calls {brief('tl.store')} in scatter"
    assert lines.of("batch", "ids")[0] == place("tensor.fill_")


def test_one_preparation_in_so_many_is_followed_after_the_first(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST", 2)
    lines, given, seen = Lines("engine", 5), torch.zeros(4), list[bool]()
    for _ in range(12):
        lines.fills.written.clear()
        with lines.learning():
            engine["fill"](given, 1)
        seen.append(bool(lines.fills.writes(given)))
        lines.begin("decode")
        lines.done()
    assert [number for number, one in enumerate(seen, 1) if one] == [1, 2, 5, 10]


def test_an_input_of_the_engine_is_not_kept_alive(engine: dict[str, Any]) -> None:
    lines = Lines("engine")
    runner = prepared(lines, engine)
    held, _ = lines.fills.written[runner.whole.data_ptr()]
    del runner
    assert held.expired()
    lines.done()
    assert not lines.fills.written


INNER = """
def give(hooked):
    return free(hooked)
def free(hooked):
    return hooked()
"""


def test_an_allocator_acts_on_behalf_of_its_caller(tmp_path: Path) -> None:
    files = {"pool.py": INNER, "cache.py": "def evict(hooked):\n    return give(hooked)"}
    scope: dict[str, Any] = {}
    for name, source in files.items():
        exec(compile(source, tmp_path / "engine" / name, "exec"), scope)
    found = scope["evict"](lambda: stack("engine", inner=("/pool.py",)))
    assert described(found) == (
        "engine/cache.py:2",
        "in evict; which calls pool.py:3 in give, pool.py:5 in free",
    )
    assert described(Stack(())) == (None, None)
