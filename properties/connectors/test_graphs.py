"""The static inputs of a graph runner: which there are, and of which dtype slots of windows are."""

from types import SimpleNamespace
from typing import Any

import torch

from paritybit.connectors.sglang.engine import Engine
from paritybit.connectors.sglang.graphs import eager, inputs_of
from paritybit.connectors.sglang.pools import described
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
    watching: Any = Engine.__new__(Engine)
    watching.now, watching.requests, runner = "now", "requests", Renamed()
    run = eager(watching, runner, 7, "decode")
    assert run is not None
    assert {name: value.tolist() for name, value in run().items()} == {"output": [7]}
    assert (watching.now, watching.requests, runner.graph_runner) == ("now", "requests", "graphs")
    assert eager(watching, runner, 7, "prefill") is None
    assert eager(watching, Twice(), 7, "decode") is None
