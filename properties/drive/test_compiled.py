"""The Triton backend answers what the graph runner of a CPU asks of an attention backend."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive.sglang import compiled

DECODE = SimpleNamespace(is_decode=lambda: True)


class Backend:
    """A backend that plans each batch by the sum of its lengths."""

    def __init__(self) -> None:
        self.bound: list[object] = []
        plan = SimpleNamespace(bind=lambda batch, ids, cols: self.bound.append(batch))
        self.kv_index_translator = SimpleNamespace(own_plan=lambda batch: plan)
        self.planned: list[int] = []

    def init_forward_metadata(self, batch: Any) -> None:
        """Plan a batch."""
        self.planned.append(batch.seq_lens_sum)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    kind = type("TritonAttnBackend", (Backend,), {})
    batches = SimpleNamespace(
        ForwardBatch=lambda **given: SimpleNamespace(seq_lens_cpu=None, **given),
        ForwardMode=SimpleNamespace(DECODE=DECODE),
    )
    monkeypatch.setitem(sys.modules, compiled.BACKEND, SimpleNamespace(TritonAttnBackend=kind))
    monkeypatch.setitem(sys.modules, compiled.BATCHES, batches)
    compiled.attend_in_cpu_graphs()
    return kind()


def batch(pool: Any = None, cpu: Any = None) -> Any:
    return SimpleNamespace(
        forward_mode=DECODE,
        seq_lens=torch.tensor([5, 7]),
        seq_lens_cpu=cpu,
        seq_lens_sum=2,
        token_to_kv_pool=pool,
    )


def test_a_padded_batch_is_planned_by_its_own_lengths(backend: Any) -> None:
    padded, whole = batch(), batch(cpu=torch.tensor([5, 7]))
    backend.init_forward_metadata(padded)
    backend.init_forward_metadata(whole)
    assert backend.planned == [12, 2]
    assert backend.bound == [padded]


def test_a_pool_forgets_the_slots_of_an_eager_forward(backend: Any) -> None:
    told: list[object] = []
    backend.init_forward_metadata(batch(SimpleNamespace(set_swa_loc=told.append)))
    assert told == [None]


def test_a_capture_is_planned_for_its_rows(backend: Any) -> None:
    assert backend.get_cpu_graph_seq_len_fill_value() == compiled.SHORTEST
    backend.init_cpu_graph_state(4, 4)
    rows, lengths = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    backend.init_forward_metadata_capture_cpu_graph(4, 4, rows, lengths, None, DECODE, None)
    assert backend.planned == [4]


def test_nothing_prepares_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SimpleNamespace(**dict.fromkeys(compiled.PREPARING, lambda *sizes: 1 / 0))
    monkeypatch.setitem(sys.modules, compiled.RUNNER, runner)
    compiled.compile_nothing()
    runner.register_fake_ops(1)
    runner.set_torch_compile_config()
