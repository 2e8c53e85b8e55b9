"""The laws that fire in the toy engine with graphs, which its connector does not all report."""

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from paritybit.testing import conformance, laws
from paritybit.watch import journal
from paritybit.watch.checks import CHECKS
from paritybit.watch.settings import VARIABLE
from properties.watch.conftest import THREADS, TOY


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Serve requests that share a prefix. The first call installs the connector."""
    monkeypatch.syspath_prepend(TOY)
    monkeypatch.setattr(journal, "_OPEN", [])
    monkeypatch.delenv(VARIABLE, raising=False)
    names = "toyengine", "toyengine_paritybit"
    torch.set_num_threads(1)

    def call() -> None:
        toyengine: Any = importlib.import_module(names[0])
        if names[1] not in sys.modules:
            importlib.import_module(names[1]).connect()
        engine = toyengine.Engine()
        first, other = engine.add("a", [1, 2, 3]), engine.add("b", [4, 5, 6, 7, 8, 9])
        engine.decode()
        engine.decode()
        engine.finish(first, keep=2)
        last = engine.add("c", [1, 2, 4])
        engine.decode()
        engine.finish(other)
        engine.decode()  # With a padded row.
        engine.finish(last)
        more = engine.add("d", [9, 1, 2])
        engine.offload(more, keep=2)
        engine.wait(engine.transfers[0])

    yield call
    torch.set_num_threads(THREADS)
    for name in names:
        sys.modules.pop(name, None)


def test_each_law_of_an_engine_with_graphs_fires(serve: Callable[[], None]) -> None:
    assert conformance.FAULTS.keys() == CHECKS.keys()
    reasons = {name: one for name, one in conformance.FAULTS.items() if isinstance(one, str)}
    assert laws(serve) == {
        **dict.fromkeys(CHECKS, "fires"),
        **{name: f"not injected: {reason}" for name, reason in reasons.items()},
        "stale input": "not reported: StaticInput.expected or Watcher.judge_tokens",
        "wrong row": "not reported: Watcher.judge_rows",
    }
