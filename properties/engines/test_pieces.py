"""A forward captured in pieces, on graphs of a CPU; and what a prefill's padding and reads are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.reference.batch import Mode
from paritybit.reference.torch_ops import TorchOps
from paritybit.subjects.engines.sglang.padded import padded_inputs, padded_rows
from paritybit.subjects.engines.sglang.runners.prefill import token_reads
from paritybit.subjects.engines.shared.graphs import CpuGraph
from paritybit.subjects.graphs.pieces import Pieces, installed, splitting
from torch import Tensor


class Model(torch.nn.Module):
    """Doubles its input, lets `scaled` write what it reads of `live` then, and adds one."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.ran = 1, 0
        self.attention = splitting(self._scaled)

    def _scaled(self, values: Tensor, out: Tensor) -> None:
        out[: self.live] = values[: self.live] * 10

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the values of every token."""
        self.ran += 1
        doubled = input_ids * 2
        out = torch.zeros_like(doubled)
        self.attention(doubled, out)
        return out + 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's graphs be a CPU's."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CpuGraph)
    CpuGraph.ops = TorchOps()


@pytest.mark.usefixtures("graphs")
def test_a_replay_runs_the_graphs_and_the_call_between_them_anew() -> None:
    model, source = Model(), torch.ones(3, dtype=torch.int64)
    pieces = Pieces(None)
    pieces.capture(lambda: model.forward(source))
    assert len(pieces.graphs) == 2
    source.fill_(3)
    model.live = 2
    assert pieces.replay().tolist() == [61, 61, 1]
    assert model.ran == 1


@pytest.mark.usefixtures("graphs")
def test_a_forward_warms_up_is_captured_and_is_replayed_by_its_size() -> None:
    model, state = Model(), {"graphs": True, "warms up": True}
    install = installed(lambda: state["graphs"], lambda: state["warms up"])
    install(model)
    source = torch.ones(3, dtype=torch.int64)
    runs = []
    for warms_up, values in ((True, source), (False, source), (False, source), (False, source)):
        state["warms up"] = warms_up
        model(values)
        runs.append(model.ran)
    assert runs == [1, 2, 3, 3]
    model(source[:2])
    assert model.ran == 4
    state["graphs"] = False
    model(source)
    assert model.ran == 5


def test_padding_of_tokens_ends_with_the_bucket_and_that_of_requests_with_the_buffer() -> None:
    inputs = {
        "positions": torch.arange(12),
        "mrope_positions": torch.arange(36).view(3, 12),
        "mamba_track_mask": torch.arange(5),
        "input_embeds": torch.zeros(12, 4),
    }
    batch: Any = SimpleNamespace(live_tokens=2, live_requests=1)
    tails = {
        name: held.tail(batch, 4).tolist()
        for name, held in padded_inputs(inputs, Mode.EXTEND, 1).items()
    }
    assert tails == {
        "positions": [2, 3],
        "mrope_positions": [[2, 3], [14, 15], [26, 27]],
        "mamba_track_mask": [1, 2, 3, 4],
    }


def test_padding_of_a_runner_of_requests_is_as_wide_as_its_tokens() -> None:
    inputs = {"positions": torch.arange(12), "seq_lens": torch.arange(4)}
    batch: Any = SimpleNamespace(live_requests=1)
    found = padded_inputs(inputs, Mode.TARGET_VERIFY, 3)
    assert found["positions"].tail(batch, 2).tolist() == [3, 4, 5]
    assert found["seq_lens"].tail(batch, 2).tolist() == [1]


def test_padding_of_a_draft_has_as_many_rows_for_each_request() -> None:
    inputs = {
        "topk_p": torch.arange(8.0).view(4, 2),
        "out_cache_loc": torch.arange(24),
        "mrope_positions": torch.arange(24).view(3, 8),
    }
    batch: Any = SimpleNamespace(live_requests=1)
    found = padded_rows(inputs, requests=4)
    assert found["topk_p"].tail(batch, 2).tolist() == [[2.0, 3.0]]
    assert found["out_cache_loc"].tail(batch, 2).tolist() == [6, 7, 8, 9, 10, 11]
    assert found["mrope_positions"].tail(batch, 2).tolist() == [[2, 3], [10, 11], [18, 19]]


def test_a_token_reads_its_prefix_and_the_new_ones_before_it_within_its_window() -> None:
    batch = SimpleNamespace(batch_size=2, extend_seq_lens_cpu=[2, 1])
    lists = torch.tensor([0, 3, 4]), torch.tensor([5, 6, 7, 9])
    new = torch.tensor([21, 22, 23])
    assert token_reads(batch, *lists, new, None) == [
        [5, 6, 7, 21],
        [5, 6, 7, 21, 22],
        [9, 23],
    ]
    assert token_reads(batch, *lists, new, 2) == [[7, 21], [21, 22], [9, 23]]
