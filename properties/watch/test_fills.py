"""What an earlier batch left in an input, and the engine did not fill again, must not matter."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.watch.facts import Forward, Replay
from paritybit.watch.fills import Fills
from properties.support.watching import Scene, row

ROWS = 4

SOURCE = """
def fill(segments, ends):
    segments[: len(ends)].copy_(ends)

def fill_all(segments, ends):
    segments[: len(ends)].copy_(ends)
    segments[len(ends) :].fill_(int(ends[-1]))

def fill_by_hand(segments, ends):
    segments[: len(ends)].copy_(ends)
    segments.numpy()[len(ends) :] = int(ends[-1])

def fill_rows(segments, ends):
    for place in range(len(ends) - 1, -1, -1):
        segments[place] = ends[place]
"""

Fill = Callable[[Tensor, Tensor], None]


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, Any]:
    """The functions of the pretended engine, whose package is `pretended`."""
    scope: dict[str, Any] = {}
    path = tmp_path / "pretended" / "lora.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    exec(compile(SOURCE, path, "exec"), scope)
    return scope


class Runner:
    """A graph that adds 1 to each row once per segment with it: `segments` are where these end."""

    def __init__(self, scene: Scene, reads_tail: bool = True) -> None:
        self.scene, self.reads_tail = scene, reads_tail
        self.segments = torch.zeros(ROWS + 1, dtype=torch.int64)
        self.output = torch.zeros(ROWS)
        self.live = self.rows = 0

    def graph(self) -> None:
        """Compute all rows."""
        self.output.zero_()
        ends = self.segments if self.reads_tail else self.segments[: self.live]
        first = 0
        for last in ends.tolist():
            self.output[first:last] += 1
            first = last
        for group in self.scene.groups:
            for tensor in group.layers[0].tensors:
                rows = self.output[:, None, None] + self.scene.watcher.number
                tensor[2 : 2 + self.rows] = rows[: self.rows].to(tensor.dtype)

    def serve(self, fill: Fill, ends: list[int]) -> None:
        """Watch a forward of as many rows as the last segment says."""
        number = self.scene.watcher.number
        rows = [row(f"{number} {n}", [5], 0, [2 + n]) for n in range(ends[-1])]
        self.live, self.rows = len(ends), len(rows)
        with self.scene.watcher.lines.learning():
            fill(self.segments, torch.tensor(ends))
            self.scene.watcher.lines.stop()
            self.scene.watcher.begin(Forward("decode", tuple(rows)))
            self.scene.watcher.replay(
                Replay(
                    *(self, "Runner", len(rows), ROWS, ()),
                    run=self.graph,
                    outputs=lambda: {"logits": self.output[: len(rows)]},
                )
            )
            self.scene.watcher.end()


BATCHES = ([1, 2, 3, 4], [2, 4], [4], [1, 2, 4], [4])


def test_entries_that_were_not_filled_and_matter_are_found(
    scene: Scene, engine: dict[str, Any]
) -> None:
    runner = Runner(scene)
    for ends in BATCHES:
        runner.serve(engine["fill"], ends)
    finding = next(line for line in scene.lines("finding") if line["check"] == "padding leak")
    assert "segments" in finding["cause"]["what"]
    assert finding["cause"]["source"] == "pretended/lora.py:3"
    assert finding["cause"]["via"] == "in fill"


def test_an_engine_may_end_an_inference_mode_that_it_began_while_it_was_followed(
    scene: Scene,
) -> None:
    """Torch restores what it dispatched to before. Without a mode there, it would fail."""
    lines = scene.watcher.lines
    with lines.learning():
        with torch.inference_mode(), torch.inference_mode():
            lines.stop()
            assert not torch._C._dispatch_tls_is_dispatch_key_included("Python")
            torch.empty(0)
        torch.empty(0)
    torch.empty(0)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_no_operation_of_a_forward_pass_is_dispatched_to_the_sanitizer(scene: Scene) -> None:
    """Otherwise each would take several times as long."""
    lines = scene.watcher.lines
    with lines.learning():
        lines.stop()
        assert torch._C._len_torch_dispatch_stack() == 0
    with torch.inference_mode(), lines.learning():
        lines.stop()
        torch._C._dispatch_tls_set_dispatch_key_included("Python", True)  # As torch.tensor does.
        scene.watcher.lines.fills.stop()
        assert not torch._C._dispatch_tls_is_dispatch_key_included("Python")


@pytest.mark.parametrize(
    ("fill", "reads_tail"),
    [("fill_all", True), ("fill_by_hand", True), ("fill_rows", False), ("fill", False)],
)
def test_entries_that_are_filled_in_any_way_or_do_not_matter_are_no_finding(
    scene: Scene, engine: dict[str, Any], fill: str, reads_tail: bool
) -> None:
    """By numpy, no operation of torch fills them. In `fill_rows`, no call fills all of them."""
    runner = Runner(scene, reads_tail)
    for ends in BATCHES * 2:
        runner.serve(engine[fill], ends)
    assert scene.checks() == []


def test_what_cannot_be_followed_is_not_tried(scene: Scene, engine: dict[str, Any]) -> None:
    runner = Runner(scene)
    for ends in BATCHES:
        runner.serve(engine["fill_by_hand"], ends)
    assert scene.checks() == []
    reasons = [name for name in scene.counts() if name.startswith("not tried: padding leak")]
    assert any("not every change of segments" in reason for reason in reasons)


def test_an_error_while_following_does_not_reach_the_engine(
    scene: Scene, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paritybit.watch.fills.stack", lambda *_: 1 / 0)
    runner = Runner(scene)
    for ends in BATCHES:
        runner.serve(engine["fill"], ends)
    assert runner.segments.tolist() == [4, 2, 4, 4, 0]
    assert scene.checks() == []
    reasons = [name for name in scene.counts() if name.startswith("not tried: padding leak")]
    assert any("could not be followed" in reason for reason in reasons)


def test_lines_that_write_what_an_input_holds_already_are_named(
    scene: Scene, engine: dict[str, Any]
) -> None:
    lines, segments = scene.watcher.lines, torch.zeros(ROWS)
    for _ in range(3):
        with lines.learning():
            engine["fill_all"](segments, torch.ones(2))
        lines.note("Runner", {"segments": segments})
        lines.done()
    found = lines.of("Runner", "segments")
    named = [f"lora.py:{number}" for number in (6, 7)]
    assert all(any(name in str(part) for part in found) for name in named)


def test_torch_s_compiler_is_not_imported_and_would_not_compile_the_mode(
    scene: Scene, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing it takes seconds. Once the engine has done so, the mode is excluded."""
    dispatch = Fills.__torch_dispatch__

    def copied(*given: Any) -> Any:
        return dispatch(*given)

    monkeypatch.setattr(Fills, "__torch_dispatch__", copied)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    runner = Runner(scene)
    runner.serve(engine["fill"], [1, 2])
    assert "torch._dynamo" not in sys.modules
    compiler, excluded = ModuleType("torch._dynamo"), []

    def disable(function: Any, *_: Any, **__: Any) -> Any:
        excluded.append(function)
        return function

    monkeypatch.setattr(compiler, "disable", disable, raising=False)
    monkeypatch.setattr(torch, "_dynamo", compiler, raising=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)
    runner.serve(engine["fill"], [1, 2])
    assert len(excluded) == 1
