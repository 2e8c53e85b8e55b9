"""The static inputs of a graph runner: which there are, and of which dtype slots of windows are."""

from types import SimpleNamespace

import torch

from paritybit.connectors.sglang.graphs import inputs_of
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
        model = SimpleNamespace(pool=described(parts.kept(pool), 5))
        now = SimpleNamespace(model=model, batch=None, implied={}, arguments={})
        given = inputs_of(runner, 4, now)
        found = {static.name: static for static in given}
        assert found["seq_lens"].tensor is lengths
        assert found["out_cache_loc_swa"].dtype is dtype
        assert found["out_cache_loc"].dtype is None
        assert not hasattr(pool, "asked")
