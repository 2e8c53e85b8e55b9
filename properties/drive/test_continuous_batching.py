"""How transformers is fetched and started, and what stands in for graphs while it captures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.harness.errors import MalformedError
from paritybit.reference.ops import Ops

from paritybit.drive import ENGINES
from paritybit.drive.adapters import adapter, adapter_of
from paritybit.drive.transformers import stand_ins
from paritybit.engines.graphs import CpuGraph
from paritybit.engines.packages import SGLANG, TRANSFORMERS


def test_the_engine_is_chosen_by_the_package_of_a_release_or_a_folder(tmp_path: Path) -> None:
    for one in map(adapter, ENGINES):
        name, marker = one.package.name, one.package.marker
        assert adapter_of(f"{name}==5.0.0").package is one.package
        for inside in (tmp_path / name, tmp_path / f"{name}-src/src"):
            (inside / name / marker).mkdir(parents=True)
        assert adapter_of(str(tmp_path / name)).package is one.package
        assert adapter_of(str(tmp_path / f"{name}-src")).package is one.package
        (tmp_path / "all" / name / marker).mkdir(parents=True)
    both = tmp_path / f"{SGLANG.name}-src/src"
    (both / TRANSFORMERS.name / TRANSFORMERS.marker).mkdir(parents=True)
    assert adapter_of(str(both)).package is SGLANG  # It imports the other.
    with pytest.raises(MalformedError, match="several engines"):
        adapter_of(str(tmp_path / "all"))
    with pytest.raises(MalformedError, match="is not an engine"):
        adapter_of("nothing")


def test_a_capture_changes_nothing_and_a_replay_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuGraph, "ops", Ops(), raising=False)
    kept, graph = torch.zeros(3), CpuGraph()

    def capture(runner: Any, forward: Any, stream: Any, *arguments: Any) -> None:
        with stand_ins.captured(graph, stream=stream):
            forward(*arguments)
        assert kept.tolist() == [0, 0, 0]

    runner = SimpleNamespace(cache=SimpleNamespace(cache_tensor=kept))
    stand_ins.keeping(capture)(runner, kept.add_, None, torch.ones(3))
    assert not stand_ins.KEPT
    graph.replay()
    assert kept.tolist() == [1, 1, 1]
