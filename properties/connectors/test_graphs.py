"""The static inputs of a graph runner: which there are, and of which dtype slots of windows are."""

from types import SimpleNamespace
from typing import Any

import torch

from paritybit.connectors.sglang.graphs import eager, given_to, inputs_of, live, rows_of
from paritybit.connectors.sglang.pools import described
from paritybit.connectors.sglang.rows import Rows
from properties.connectors import parts


class Translating(parts.SlidingPool):
    """A pool that translates to narrow slots, as releases up to 0.5.12 do."""

    def translate_loc_from_full_to_swa(self, locations: torch.Tensor) -> torch.Tensor:
        """Return the slots of locations in the sliding sub-pool, and keep what was asked."""
        self.asked = locations
        return self.full_to_swa_index_mapping[locations].to(torch.int32)


def test_inputs_of_requests_are_inputs_and_slots_of_windows_have_the_dtype_of_the_pool() -> None:
    lengths = torch.zeros(4, dtype=torch.int64)
    buffers = SimpleNamespace(
        out_cache_loc=torch.zeros(4, dtype=torch.int64),
        out_cache_loc_swa=torch.zeros(4, dtype=torch.int64),
    )
    runner = parts.Part(
        buffers=buffers, _prefill_static_buffers={"seq_lens": lengths}, graphs={4: None}
    )
    for pool, dtype in ((Translating(), torch.int32), (parts.SlidingPool(), None)):
        given = inputs_of(runner, None, 4, {}, described(parts.kept(pool), 5), {})
        found = {static.name: static for static in given}
        assert found["seq_lens"].tensor is lengths
        assert found["out_cache_loc_swa"].dtype is dtype
        assert found["out_cache_loc"].dtype is None
        assert not hasattr(pool, "asked")


class FrozenKVMTPCudaGraphRunner:
    """A runner of drafts without KV: two branches per request, up to four requests."""

    topk, capture_bs = 2, (2, 4)

    def __init__(self) -> None:
        self.graphs = {2: None, 4: None}
        self.buffers = SimpleNamespace(
            seq_lens=torch.tensor([5, 5, 7, 7, 1, 1, 1, 1]),
            bonus_tokens=torch.tensor([8, 9, 0, 0]),
            topk_index=torch.zeros(4, 2, dtype=torch.int64),
        )


def test_rows_of_drafts_without_kv_are_branches_and_its_graphs_go_by_requests() -> None:
    runner = FrozenKVMTPCudaGraphRunner()
    spec = SimpleNamespace(bonus_tokens=torch.tensor([8, 9]), topk_index=torch.ones(2, 2))
    batch = SimpleNamespace(batch_size=8, seq_lens=runner.buffers.seq_lens, spec_info=spec)
    rows = Rows([None] * 4, [0, 1, 2, 3])  # type: ignore[list-item]
    assert (live(runner, batch, rows), rows_of(runner, 4)) == (2, 8)
    implied = {"seq_lens": torch.tensor([5, 5, 7, 7])}
    found = {one.name: one for one in inputs_of(runner, batch, 4, {}, None, implied)}
    assert (found["seq_lens"].live, found["seq_lens"].size) == (4, 8)
    assert (found["bonus_tokens"].live, found["bonus_tokens"].size) == (2, 4)
    assert given_to("topk_index", batch, runner) is None  # Its graph computes them.
    assert rows_of(parts.Part(topk=2), 4) == 4


class Renamed:
    """A model runner whose private method that runs a batch has another name."""

    def __init__(self) -> None:
        self.graph_runner: Any = "graphs"
        self.attn_backend = self.token_to_kv_pool = SimpleNamespace()

    def forward(self, forward_batch: Any, pp_proxy_tensors: Any, split_forward_count: int) -> Any:
        """Prepare a batch."""

    def _prepared(self, forward_batch: Any, pp_proxy_tensors: Any) -> Any:
        """Take less than what runs a batch."""

    def _unrecorded(
        self, forward_batch: Any, pp_proxy_tensors: Any = None, split_forward_count: int = 1
    ) -> Any:
        """Run a batch, without graphs if there are none."""
        assert self.graph_runner is None
        return SimpleNamespace(logits_output=torch.tensor([forward_batch]))

    def _rebalanced(
        self, output: Any, forward_batch: Any, pp_proxy_tensors: Any, split_forward_count: int
    ) -> Any:
        """Run a batch again if a rank failed, as all releases can."""


class Twice(Renamed):
    """A model runner with two such methods."""

    def _other(self, forward_batch: Any, pp_proxy_tensors: Any, split_forward_count: int) -> Any:
        """Run a batch too."""


def test_a_batch_is_run_without_its_graph_by_a_method_of_any_name() -> None:
    watching, runner = SimpleNamespace(now="now", requests="requests"), Renamed()
    run = eager(watching, runner, 7, "decode")
    assert run is not None
    assert {name: value.tolist() for name, value in run().items()} == {"output": [7]}
    assert (watching.now, watching.requests, runner.graph_runner) == ("now", "requests", "graphs")
    assert eager(watching, runner, 7, "prefill") is None
    assert eager(watching, Twice(), 7, "decode") is None
