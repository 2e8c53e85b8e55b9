"""Which forwards of vLLM are repeated, and how the model of a whole graph runs without it."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors.vllm.engine import Engine
from paritybit.watch.lines import Lines
from properties.connectors.parts import hooked


@dataclass
class Context:
    """What the layers of a model are given for a forward."""

    cudagraph_runtime_mode: Any
    moe_layer_index: int = 0
    ubatch_slices: Any = None


class Model:
    """A model with two layers of experts, which notes what the connector observes of its runs."""

    def __init__(self, watching: Any, context: Context) -> None:
        self.watching, self.context = watching, context
        self.seen: list[tuple[object, int]] = []

    def __call__(self, input_ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return a hidden state per token, with padding, and another one of a layer between."""
        self.seen.append((self.watching.now, self.context.moe_layer_index))
        self.context.moe_layer_index += 2
        made = torch.full((len(input_ids), 1), float(len(self.seen)))
        return made, [made + 1]


CALL = Model.__call__


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """The context of the forward under way."""
    made = Context(SimpleNamespace(name="NONE"))
    module = SimpleNamespace(
        is_forward_context_available=lambda: True, get_forward_context=lambda: made
    )
    monkeypatch.setitem(sys.modules, "vllm.forward_context", module)
    yield made
    monkeypatch.setattr(Model, "__call__", CALL)


@pytest.fixture
def watching(context: Context) -> Any:
    """A connector whose watcher keeps what it may repeat: a prompt of two tokens."""
    kept: list[Any] = []

    def eager(replay: Any, again: Any) -> object:
        assert again()
        kept.append(replay)
        return replay.run()

    found: Any = Engine.__new__(Engine)
    runner = SimpleNamespace(model=Model(found, context))
    runner.get_model = lambda: runner.model
    found.watcher = SimpleNamespace(lines=Lines("vllm"), eager=eager, kept=kept)
    found.now = SimpleNamespace(
        runner=runner,
        batch=SimpleNamespace(live=(1, 2)),
        forward=SimpleNamespace(kind="prefill"),
        called=False,
    )
    found.once = None
    return found


def test_a_second_run_is_not_observed_and_leaves_the_context_alone(
    watching: Any, context: Context
) -> None:
    model, ids = watching.now.runner.model, torch.arange(4)
    result, _ = hooked(watching.model, CALL, model, input_ids=ids)
    (replay,) = watching.watcher.kept
    assert (replay.kind, replay.rows, replay.once) == ("prefill forward", 2, None)
    assert [one.tensor is ids for one in replay.inputs] == [True]
    assert {name: one.tolist() for name, one in replay.outputs().items()} == {
        "output[0]": [[1], [1]],
        "output[1][0]": [[2], [2]],
    }
    replay.run()
    assert replay.outputs()["output[0]"].tolist() == [[2], [2]]
    assert model.seen == [(watching.now, 0), (None, 0)]
    assert context.moe_layer_index == 2
    assert result.tolist() == [[1]] * 4


@pytest.mark.parametrize(
    ("owner", "name", "value", "repeated"),
    [("connector", "once", "it counts the load of experts", 0),
     ("context", "cudagraph_runtime_mode", SimpleNamespace(name="FULL"), None)],
)  # fmt: skip
def test_only_forwards_that_change_nothing_else_are_repeated(
    owner: str, name: str, value: object, repeated: int | None, watching: Any, context: Context
) -> None:
    model = watching.now.runner.model
    setattr(watching if owner == "connector" else context, name, value)
    hooked(watching.model, CALL, model, input_ids=torch.arange(2))
    kept = [int(replay.once is None) for replay in watching.watcher.kept]
    assert kept == ([] if repeated is None else [repeated])
    assert len(model.seen) == 1
